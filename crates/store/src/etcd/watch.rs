//! A watch: one stream of one connection. It ends with the connection, and whoever uses it begins again with a listing.
//!
//! A connection that went dead is noticed by pings (`target.rs`), a member that lost its peers by etcd itself: it breaks off
//! the streams of whoever requires a leader.

use std::sync::Arc;

use etcd_client::{EventType, WatchOptions, WatchResponse, WatchStream};

use super::EtcdBackend;
use super::ask::Repeat;
use super::calls::entry;
use super::connect::Connection;
use super::failure::{EtcdFailure, Reason};
use crate::Result;
use crate::error::Error;
use crate::store::StoreCall;
use crate::types::{Event, Watched};

#[derive(Debug)]
pub(crate) struct EtcdWatch {
    etcd: Arc<EtcdBackend>,
    prefix: String,
    /// Which connection it lives on.
    number: u64,
    /// Gone when it ended.
    stream: Option<WatchStream>,
    /// What came with the beginning.
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
        // Large answers come in pieces.
        let options = WatchOptions::new().with_prefix().with_start_revision(from).with_fragment();
        let ask = |connection: Connection| {
            let options = options.clone();
            async move {
                let mut stream = connection.client.watch_client().watch(prefix, Some(options)).await?;
                let first = stream.message().await?;
                Ok((stream, first, connection.number))
            }
        };
        let (stream, first, number) =
            self.ask(call, Repeat::Safe, ask).await.map_err(|failure| self.error(call, failure))?;
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
                return Err(self.broke(Reason::from(response.cancel_reason().to_owned())));
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
            return Err(self.broke(Reason::from("it has ended before".to_owned())));
        };
        let Err(error) = stream.request_progress().await else { return Ok(()) };
        Err(self.ended(EtcdFailure::from(error).reason()))
    }

    async fn receive(&mut self) -> Result<WatchResponse> {
        let Some(stream) = &mut self.stream else {
            return Err(self.broke(Reason::from("it has ended before".to_owned())));
        };
        let reason = match stream.message().await {
            Ok(Some(response)) => return Ok(response),
            Ok(None) => Reason::from("etcd ended it".to_owned()),
            Err(error) => EtcdFailure::from(error).reason(),
        };
        Err(self.ended(reason))
    }

    fn ended(&mut self, reason: Reason) -> Error {
        self.stream = None;
        // A member that breaks off is not the one to go on with.
        self.etcd.link.forget(self.number);
        self.broke(reason)
    }

    fn broke(&self, reason: Reason) -> Error {
        Error::WatchBroke { prefix: self.prefix.clone(), source: reason.into() }
    }
}

fn event(event: &etcd_client::Event) -> Option<Event> {
    let entry = entry(event.kv()?);
    Some(match event.event_type() {
        EventType::Put => Event::Put(entry),
        EventType::Delete => Event::Delete { key: entry.key, revision: entry.revision },
    })
}
