//! Paths of the lab's programs: `podwire` and `podwire-cni`.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};

/// Default if the caller has no PATH; also the PATH of background programs.
pub(crate) const PATH: &str = "/usr/sbin:/usr/bin:/sbin:/bin";

/// The caller's PATH.
pub(crate) fn search_path() -> OsString {
    std::env::var_os("PATH").unwrap_or_else(|| PATH.into())
}

/// The file in the environment variable, or the file with this name next to this program or in the parent directory. Cargo
/// places tests one directory below the programs.
pub(crate) fn find(name: &str, variable: &str) -> Result<PathBuf> {
    if let Some(path) = std::env::var_os(variable) {
        let path = PathBuf::from(path);
        ensure!(path.is_file(), "{variable} names {}, which is not a file", path.display());
        return Ok(path);
    }
    let own = std::env::current_exe().context("cannot find the path of this program")?;
    near(&own, name).with_context(|| {
        format!(
            "{name} is not next to {}: set {variable} to its path, or build it with `make build`",
            own.display()
        )
    })
}

fn near(own: &Path, name: &str) -> Option<PathBuf> {
    own.ancestors().skip(1).take(2).map(|directory| directory.join(name)).find(|path| path.is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_is_found_next_to_this_one_or_in_the_parent() {
        let directory = tempfile::tempdir().unwrap();
        let own = directory.path().join("release/deps/t-123");
        assert_eq!(near(&own, "podwire"), None);
        std::fs::create_dir_all(own.parent().unwrap()).unwrap();
        let parent = directory.path().join("release/podwire");
        std::fs::write(&parent, "").unwrap();
        assert_eq!(near(&own, "podwire"), Some(parent));
        let sibling = own.with_file_name("podwire");
        std::fs::write(&sibling, "").unwrap();
        assert_eq!(near(&own, "podwire"), Some(sibling));
    }
}
