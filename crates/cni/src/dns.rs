use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::Error;
use crate::json::Obj;

/// What a resolver in the pod should use. We pass it on; we never write a resolv.conf.
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

    /// The shape that configs and results have.
    pub(crate) fn read(dns: &Obj<'_>) -> Result<Self, Error> {
        Ok(Self {
            nameservers: dns.strings("nameservers")?,
            domain: dns.nonempty("domain")?.map(str::to_owned),
            search: dns.strings("search")?,
            options: dns.strings("options")?,
        })
    }

    /// The shape of `runtimeConfig.dns`, which has other words for the same (CONVENTIONS.md).
    pub(crate) fn read_runtime(dns: &Obj<'_>) -> Result<Self, Error> {
        Ok(Self {
            nameservers: dns.strings("servers")?,
            domain: None,
            search: dns.strings("searches")?,
            options: dns.strings("options")?,
        })
    }

    /// Also when empty: the reference writes `"dns": {}`, and runtimes read it.
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
