use ipnet::IpNet;
use serde_json::{Map, Value};

use crate::{CniResult, Interface, IpConfig, PodRoute, Version};

/// The formats of results. A field is only written in formats that define it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum ResultFormat {
    /// 0.1.0, 0.2.0: `ip4` and `ip6`.
    PerFamily,
    /// 0.3.0 to 0.4.0: lists. Every address has its family in `version`.
    Lists,
    /// 1.0.0: addresses without `version`.
    V1,
    /// 1.1.0: more fields of interfaces and routes.
    V1Extended,
}

impl ResultFormat {
    fn of(version: Version) -> Self {
        match version {
            Version::V0_1_0 | Version::V0_2_0 => ResultFormat::PerFamily,
            Version::V0_3_0 | Version::V0_3_1 | Version::V0_4_0 => ResultFormat::Lists,
            Version::V1_0_0 => ResultFormat::V1,
            Version::V1_1_0 => ResultFormat::V1Extended,
        }
    }
}

/// Builds a JSON object. Absent and empty values are omitted, as in the reference plugins.
#[derive(Default)]
struct ResultObject(Map<String, Value>);

impl ResultObject {
    fn put(&mut self, key: &str, value: impl Into<Value>) {
        self.0.insert(key.to_owned(), value.into());
    }

    fn put_some<T: ToString>(&mut self, key: &str, value: Option<&T>) {
        if let Some(text) = value.map(ToString::to_string).filter(|text| !text.is_empty()) {
            self.put(key, text);
        }
    }

    fn put_number(&mut self, key: &str, value: Option<u32>) {
        if let Some(number) = value {
            self.put(key, number);
        }
    }

    fn put_list(&mut self, key: &str, values: Vec<Value>) {
        if !values.is_empty() {
            self.put(key, values);
        }
    }
}

impl CniResult {
    /// The result as `version` defines it.
    pub fn to_json(&self, version: Version) -> Value {
        let format = ResultFormat::of(version);
        let mut object = ResultObject::default();
        object.put("cniVersion", version.as_str());
        object.put("dns", self.dns.to_json());
        match format {
            ResultFormat::PerFamily => {
                object.put_family("ip4", self, |net| matches!(net, IpNet::V4(_)));
                object.put_family("ip6", self, |net| matches!(net, IpNet::V6(_)));
            }
            ResultFormat::Lists | ResultFormat::V1 | ResultFormat::V1Extended => {
                object.put_list("interfaces", self.interfaces.iter().map(|i| i.to_json(format)).collect());
                object.put_list("ips", self.ips.iter().map(|ip| ip.to_json(format)).collect());
                object.put_list("routes", self.routes.iter().map(|r| r.to_json(format)).collect());
            }
        }
        Value::Object(object.0)
    }
}

impl ResultObject {
    /// This format has only one address per family: the first one is written.
    fn put_family(&mut self, key: &str, result: &CniResult, is_family: fn(&IpNet) -> bool) {
        let Some(ip) = result.ips.iter().find(|ip| is_family(&ip.address)) else { return };
        let routes = result.routes.iter().filter(|route| is_family(&route.dst));
        let mut family = ResultObject::default();
        family.put("ip", ip.address.to_string());
        family.put_some("gateway", ip.gateway.as_ref());
        family.put_list("routes", routes.map(|route| route.to_json(ResultFormat::PerFamily)).collect());
        self.put(key, family.0);
    }
}

impl Interface {
    fn to_json(&self, format: ResultFormat) -> Value {
        let mut object = ResultObject::default();
        object.put("name", self.name.as_str());
        object.put_some("mac", self.mac.as_ref());
        object.put_some("sandbox", self.sandbox.as_ref());
        if format >= ResultFormat::V1Extended {
            object.put_number("mtu", self.mtu.filter(|mtu| *mtu > 0));
            object.put_some("socketPath", self.socket_path.as_ref());
            object.put_some("pciID", self.pci_id.as_ref());
        }
        Value::Object(object.0)
    }
}

impl IpConfig {
    fn to_json(&self, format: ResultFormat) -> Value {
        let mut object = ResultObject::default();
        object.put("address", self.address.to_string());
        object.put_some("gateway", self.gateway.as_ref());
        if let Some(index) = self.interface {
            object.put("interface", index);
        }
        if format < ResultFormat::V1 {
            let family = match self.address {
                IpNet::V4(_) => "4",
                IpNet::V6(_) => "6",
            };
            object.put("version", family);
        }
        Value::Object(object.0)
    }
}

impl PodRoute {
    fn to_json(&self, format: ResultFormat) -> Value {
        let mut object = ResultObject::default();
        object.put("dst", self.dst.to_string());
        object.put_some("gw", self.gw.as_ref());
        if format >= ResultFormat::V1Extended {
            object.put_number("mtu", self.mtu.filter(|n| *n > 0));
            object.put_number("advmss", self.advmss.filter(|n| *n > 0));
            object.put_number("priority", self.priority.filter(|n| *n > 0));
            object.put_number("table", self.table);
            object.put_number("scope", self.scope);
        }
        Value::Object(object.0)
    }
}
