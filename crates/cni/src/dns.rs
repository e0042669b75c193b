use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::Error;
use crate::json::Obj;

/// Resolver settings for the pod. They are only passed to the runtime in the result; Podwire writes no resolv.conf.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Dns {
    pub nameservers: Vec<String>,
    pub domain: Option<String>,
    pub search: Vec<String>,
    pub options: Vec<String>,
}

impl Dns {
    pub fn is_empty(&self) -> bool {
        let Self { nameservers, domain, search, options } = self;
        nameservers.is_empty() && domain.is_none() && search.is_empty() && options.is_empty()
    }

    /// The format of configs and results.
    pub(crate) fn read(dns: &Obj<'_>) -> Result<Self, Error> {
        Ok(Self {
            nameservers: dns.strings("nameservers")?,
            domain: dns.nonempty("domain")?.map(str::to_owned),
            search: dns.strings("search")?,
            options: dns.strings("options")?,
        })
    }

    /// The format of `runtimeConfig.dns`, which has different keys (CONVENTIONS.md).
    pub(crate) fn read_runtime(dns: &Obj<'_>) -> Result<Self, Error> {
        Ok(Self {
            nameservers: dns.strings("servers")?,
            domain: None,
            search: dns.strings("searches")?,
            options: dns.strings("options")?,
        })
    }

    /// Also if empty: the reference plugins write `"dns": {}`, and runtimes read it.
    pub(crate) fn to_json(&self) -> Value {
        let mut object = Map::new();
        for (key, list) in
            [("nameservers", &self.nameservers), ("search", &self.search), ("options", &self.options)]
        {
            if !list.is_empty() {
                object.insert(key.into(), list.clone().into());
            }
        }
        if let Some(domain) = &self.domain {
            object.insert("domain".into(), domain.clone().into());
        }
        Value::Object(object)
    }
}
