//! The profile and the policies of a pod, as the agent knows them.

use api::{ObjectDetails, PodGroupView};
use engine::state::Attachment;
use model::ObjectId;
use serde_json::Value;

use crate::cli::AgentSelector;
use crate::commands::{nodes::AgentClient, objects};

/// None if the pod has no placement, or no agent answers. The attachment is shown nevertheless.
pub(super) fn of_pod(attachment: &Attachment, agent: &AgentSelector) -> Option<PodGroupView> {
    let placement = attachment.placement.as_ref()?;
    let client = AgentClient::find(agent);
    let Some(group) = &placement.group else {
        // Whether an agent answers at all.
        let _answer: Value = client.get(api::VERSION).ok()?;
        return Some(PodGroupView::default());
    };
    let id = ObjectId::group(&placement.tenant, group);
    let details: ObjectDetails = client.get(&objects::path(api::OBJECT_DETAILS, &id)).ok()?;
    let spec = details.document.map(|document| document["spec"].clone()).unwrap_or_default();
    let policies = spec["policies"].as_array().into_iter().flatten().filter_map(Value::as_str);
    Some(PodGroupView {
        profile: spec["profile"].as_str().map(str::to_owned),
        policies: policies.map(str::to_owned).collect(),
        rules: details.rules,
    })
}
