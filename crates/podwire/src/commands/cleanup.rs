//! `podwire cleanup`: leave the machine as it was, and say what was done.

use anyhow::Result;

use crate::cli::Cleanup;

pub(crate) fn run(args: &Cleanup) -> Result<()> {
    let report = engine::cleanup(&args.run_dir)?;
    for line in &report.done {
        println!("{line}");
    }
    for line in &report.left {
        println!("left: {line}");
    }
    if report.done.is_empty() && report.left.is_empty() {
        println!("nothing of Podwire is here");
    }
    anyhow::ensure!(report.left.is_empty(), "some things were left; see above");
    Ok(())
}
