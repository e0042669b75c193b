//! Converts listed and watched keys of nodes and leases to lease events.

use model::KeyLayout;
use store::{Event, Listing};

use super::command::alive_at;
use super::leases::LeaseEvent;
use super::member::Member;

impl Member {
    /// Agents that started or stopped. No route depends on them. `podwire nodes` and conditions show them.
    pub(crate) fn update_agents(&self, events: &[Event]) {
        let (layout, contact) = (&self.registry.layout, &self.shared.contact);
        self.shared.apply_lease_events(events.iter().filter_map(|event| lease_event(layout, event)));
        for event in events {
            let Some(name) = layout.alive_of(event.key()) else { continue };
            let since = match event {
                Event::Put(entry) => alive_at(layout, &entry.key, &entry.value).map(|(_, since)| since),
                Event::Delete { .. } => None,
            };
            contact.set_alive(name, since);
        }
    }

    /// Counts every key, also one with an unreadable value.
    pub(crate) fn list_leases(&self, listing: &Listing) {
        let layout = &self.registry.layout;
        let keys = || listing.entries.iter().map(|entry| entry.key.as_str());
        let nodes = keys().filter_map(|key| layout.node_of(key)).collect();
        self.shared.list_leases(nodes, keys().filter_map(|key| layout.alive_of(key)).collect());
    }
}

fn lease_event(layout: &KeyLayout, event: &Event) -> Option<LeaseEvent> {
    let key = event.key();
    let is_put = matches!(event, Event::Put(_));
    match (layout.node_of(key), layout.alive_of(key)) {
        (Some(name), _) if is_put => Some(LeaseEvent::Registered(name)),
        (Some(name), _) => Some(LeaseEvent::Removed(name)),
        (None, Some(name)) if is_put => Some(LeaseEvent::Held(name)),
        (None, Some(name)) => Some(LeaseEvent::Ended(name)),
        (None, None) => None,
    }
}
