//! Traffic between pods of two nodes, for both builds: directly and through VXLAN, in both families.

use anyhow::{Context as _, Result};

use super::series::Series;
use super::{CompareResults, CompareScale, ComparedBuild};
use crate::nodes::traffic::{FAMILIES, TRANSPORTS, TrafficRounds, cluster_of_two, pods, probe};
use crate::stats::{Better, median};

/// One site: two clusters for each transport.
pub(super) fn measure(
    builds: &[ComparedBuild; 2],
    scale: &CompareScale,
    results: &mut CompareResults,
) -> Result<()> {
    for (name, transport) in TRANSPORTS {
        let [old, new] = builds;
        let clusters =
            [cluster_of_two(name, transport, Some(old))?, cluster_of_two(name, transport, Some(new))?];
        for (family, v4) in FAMILIES {
            let pairs = [pods(&clusters[0], v4)?, pods(&clusters[1], v4)?];
            let mut rounds = [TrafficRounds::default(), TrafficRounds::default()];
            for round in 0..scale.traffic_rounds {
                for which in if round % 2 == 0 { [0, 1] } else { [1, 0] } {
                    let (pair, rounds) = (&pairs[which], &mut rounds[which]);
                    let context = || format!("{name}, {family}, round {round}");
                    rounds.gbit_per_s.push(probe::streams(pair, scale.stream).with_context(context)?);
                    rounds.trip_us.push(probe::trips(pair, scale.trips).with_context(context)?);
                }
            }
            let [old, new] = &rounds;
            let case = |what: &str| format!("pod to pod, {name}, {family}, {what}");
            results
                .series(Series::new(case("throughput"), ("Gbit/s", Better::More), median))
                .add(&old.gbit_per_s, &new.gbit_per_s);
            results
                .series(Series::new(case("request/response"), ("µs", Better::Less), median))
                .add(&old.trip_us, &new.trip_us);
        }
    }
    Ok(())
}
