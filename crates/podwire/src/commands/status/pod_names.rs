//! Names of pods in the status. Conditions and repairs name an attachment by its container ID, operators know pods by name.

use std::collections::BTreeMap;
use std::path::Path;

use api::{Condition, Repair};
use engine::state::{Attachment, NodeState};

use crate::print;

const ATTACHMENT: &str = "attachment ";

/// The pod's name by the text of the attachment's key.
pub(super) struct PodNames(BTreeMap<String, String>);

impl PodNames {
    /// Empty if the records cannot be read, which a condition reports. The key is shown then.
    pub(super) fn read(run_dir: &Path) -> Self {
        let Ok(Some(state)) = NodeState::open_existing(run_dir) else { return Self(BTreeMap::new()) };
        let networks = state.networks().unwrap_or_default();
        let listed = networks.iter().flat_map(|network| network.list().unwrap_or_default());
        Self(listed.filter_map(|listed| named(&listed.attachment?)).collect())
    }

    /// Conditions are identified by their object, so it stays.
    pub(super) fn add_to_conditions(&self, conditions: &mut [Condition]) {
        for condition in conditions {
            let pod = condition.object.strip_prefix(ATTACHMENT).and_then(|key| self.0.get(key));
            if let Some(pod) = pod {
                condition.object.push_str(&format!(" (pod {pod})"));
            }
        }
    }

    /// The pod replaces the attachment, so that most repairs fit on one line.
    pub(super) fn add_to_repairs(&self, repairs: &mut [Repair]) {
        for repair in repairs {
            let Some((key, what)) =
                repair.message.strip_prefix(ATTACHMENT).and_then(|text| text.split_once(": "))
            else {
                continue;
            };
            if let Some(pod) = self.0.get(key) {
                let interface = key.rsplit('/').next().unwrap_or_default();
                repair.message = format!("pod {pod} ({interface}): {what}");
            }
        }
    }
}

/// Key and name. None if the runtime gave no name.
fn named(attachment: &Attachment) -> Option<(String, String)> {
    let pod = attachment.pod.as_ref()?;
    let name = match pod.namespace.as_str() {
        "" => pod.name.clone(),
        namespace => format!("{namespace}/{}", pod.name),
    };
    Some((attachment.key.to_string(), print::one_line(&name)))
}

#[cfg(test)]
mod tests {
    use api::Timestamp;
    use types::{Code, Finding};

    use super::*;

    fn names() -> PodNames {
        PodNames(BTreeMap::from([("podwire/0f2c/eth0".to_owned(), "shop/web".to_owned())]))
    }

    fn objects(objects: [&str; 3]) -> Vec<String> {
        let condition = |object| Condition::new(Finding::new(Code::PodMacChanged, object, "message"), None);
        let mut conditions: Vec<Condition> = objects.into_iter().map(condition).collect();
        names().add_to_conditions(&mut conditions);
        conditions.into_iter().map(|condition| condition.object).collect()
    }

    #[test]
    fn f13_conditions_and_repairs_have_the_name_of_the_pod() {
        assert_eq!(
            objects(["attachment podwire/0f2c/eth0", "attachment podwire/0f2c/eth1", "node n1"]),
            ["attachment podwire/0f2c/eth0 (pod shop/web)", "attachment podwire/0f2c/eth1", "node n1"]
        );
        let repaired = |message: &str| {
            let mut repairs = vec![Repair { at: Timestamp(1), message: message.to_owned() }];
            names().add_to_repairs(&mut repairs);
            repairs.remove(0).message
        };
        assert_eq!(
            repaired("attachment podwire/0f2c/eth0: address 10.83.0.2/32 was missing in the pod"),
            "pod shop/web (eth0): address 10.83.0.2/32 was missing in the pod"
        );
        for unchanged in ["attachment podwire/ab/eth0: its link was missing", "created bridge podwire0"] {
            assert_eq!(repaired(unchanged), unchanged);
        }
    }
}
