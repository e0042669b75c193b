//! `podwire version`.

use anyhow::Result;
use api::VersionAnswer;
use cni::Version;

use crate::cli::{Output, VersionArgs};
use crate::print;

pub(crate) fn run(args: &VersionArgs) -> Result<()> {
    let answer = VersionAnswer {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        api: api::API_VERSION,
        cni_versions: Version::ALL.map(|version| version.as_str().to_owned()).to_vec(),
    };
    match args.output {
        Output::Json => print::json(&answer),
        Output::Table | Output::Wide => print::line(print::key_values([
            ("podwire", answer.version),
            ("API", format!("v{}", answer.api)),
            ("CNI", answer.cni_versions.join(", ")),
        ])),
    }
}
