//! A watch: one stream of one connection. It ends with the connection. The caller then starts again with a listing.
//!
//! Pings (`target.rs`) detect a dead connection. A member that lost its peers ends the streams of clients that require a
//! leader.

use std::sync::Arc;

use etcd_client::{EventType, WatchOptions, WatchResponse, WatchStream};

use super::EtcdBackend;
use super::calls::entry;
use super::connect::Connection;
use super::failure::{EtcdFailure, Reason};
use super::request::RetryPolicy;
use crate::Result;
use crate::error::Error;
use crate::store::StoreCall;
use crate::types::{Event, Watched};

#[derive(Debug)]
pub(crate) struct EtcdWatch {
    etcd: Arc<EtcdBackend>,
    prefix: String,
    /// The number of the connection.
    number: u64,
    /// None after the watch has ended.
    stream: Option<WatchStream>,
    /// The first response.
    first: Option<WatchResponse>,
}

impl EtcdBackend {
    pub(crate) async fn watch(
        self: &Arc<Self>,
        call: &StoreCall,
        prefix: &str,
        from: u64,
    ) -> Result<EtcdWatch> {
        let from = i64::try_from(from.max(1)).unwrap_or(i64::MAX);
        // Large responses are sent in fragments.
        let options = WatchOptions::new().with_prefix().with_start_revision(from).with_fragment();
        let send = |connection: Connection| {
            let options = options.clone();
            async move {
                let mut stream = connection.client.watch_client().watch(prefix, Some(options)).await?;
                let first = stream.message().await?;
                Ok((stream, first, connection.number))
            }
        };
        let (stream, first, number) =
            self.request(call, RetryPolicy::Safe, send).await.map_err(|failure| self.error(call, failure))?;
        let watch = EtcdWatch {
            etcd: Arc::clone(self),
            prefix: prefix.to_owned(),
            number,
            stream: Some(stream),
            first,
        };
        match &watch.first {
            Some(first) if first.canceled() && first.compact_revision() == 0 => {
                Err(self.error(call, EtcdFailure::of_cancelled_watch(first.cancel_reason())))
            }
            _ => Ok(watch),
        }
    }
}

impl EtcdWatch {
    pub(crate) async fn next(&mut self) -> Result<Watched> {
        loop {
            let response = match self.first.take() {
                Some(first) => first,
                None => self.receive().await?,
            };
            if response.canceled() {
                self.stream = None;
                if response.compact_revision() > 0 {
                    return Ok(Watched::Compacted);
                }
                return Err(self.failed(Reason::from(response.cancel_reason().to_owned())));
            }
            let events: Vec<Event> = response.events().iter().filter_map(event).collect();
            if let Some(last) = events.last() {
                let revision = last.revision();
                return Ok(Watched::Events { events, revision });
            }
            if !response.created() {
                return Ok(Watched::Current);
            }
        }
    }

    pub(crate) async fn request_progress(&mut self) -> Result<()> {
        let Some(stream) = &mut self.stream else {
            return Err(self.failed(Reason::from("the watch has ended".to_owned())));
        };
        let Err(error) = stream.request_progress().await else { return Ok(()) };
        Err(self.end(EtcdFailure::from(error).reason()))
    }

    async fn receive(&mut self) -> Result<WatchResponse> {
        let Some(stream) = &mut self.stream else {
            return Err(self.failed(Reason::from("the watch has ended".to_owned())));
        };
        let reason = match stream.message().await {
            Ok(Some(response)) => return Ok(response),
            Ok(None) => Reason::from("etcd closed the stream".to_owned()),
            Err(error) => EtcdFailure::from(error).reason(),
        };
        Err(self.end(reason))
    }

    fn end(&mut self, reason: Reason) -> Error {
        self.stream = None;
        // Reconnects to another member.
        self.etcd.connector.forget(self.number);
        self.failed(reason)
    }

    fn failed(&self, reason: Reason) -> Error {
        Error::WatchFailed { prefix: self.prefix.clone(), source: reason.into() }
    }
}

fn event(event: &etcd_client::Event) -> Option<Event> {
    let entry = entry(event.kv()?);
    Some(match event.event_type() {
        EventType::Put => Event::Put(entry),
        EventType::Delete => Event::Delete { key: entry.key, revision: entry.revision },
    })
}
