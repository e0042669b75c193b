//! What others do to our pods: found and told, never changed.

use api::Problem;
use tracing::warn;
use types::IfName;

use super::Keeper;
use crate::board::Finder;

impl Keeper {
    /// Forward chains of others that drop what pods send.
    pub(super) fn look_at_others(&mut self) {
        let bridges = self.bridges();
        let names: Vec<&IfName> = bridges.iter().collect();
        match nft::foreign_drops(&names) {
            Ok(drops) => {
                let found: Vec<Problem> = drops.into_iter().map(foreign).collect();
                let known = self.parts.board.problems();
                for new in found.iter().filter(|problem| !known.contains(problem)) {
                    warn!(command = new.command.as_deref(), "{}", new.what);
                }
                self.parts.board.set_problems(Finder::Firewall, found);
            }
            Err(error) => warn!("cannot look at the firewall's other tables: {error}"),
        }
    }
}

fn foreign(drop: nft::ForeignDrop) -> Problem {
    let nft::ForeignDrop { family, table, chain, why, command } = drop;
    let what = format!("chain {chain} of the firewall's table {family} {table} drops what pods send: {why}");
    Problem { what, command: Some(command) }
}
