//! Commands that operators paste into a root shell. Names in them may be chosen inside a pod, so they are quoted.

use std::borrow::Cow;
use std::fmt;
use std::ops::Deref;

use crate::shell_word;

/// A shell command. Only a constant can be used verbatim. All other commands are built from words, and this type quotes each
/// word.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Fix(Cow<'static, str>);

impl Fix {
    /// One command with its arguments.
    pub fn words<W: AsRef<str>>(words: impl IntoIterator<Item = W>) -> Self {
        let words: Vec<String> =
            words.into_iter().map(|word| shell_word(word.as_ref()).into_owned()).collect();
        Self(words.join(" ").into())
    }

    /// The next command runs only if this one succeeds.
    pub fn and(self, next: impl Into<Self>) -> Self {
        Self(format!("{self} && {}", next.into()).into())
    }

    /// The next command runs in any case.
    pub fn then(self, next: impl Into<Self>) -> Self {
        Self(format!("{self}; {}", next.into()).into())
    }

    /// Adds the output of the command to a file.
    pub fn append_to(self, file: &str) -> Self {
        Self(format!("{self} >> {}", shell_word(file)).into())
    }
}

impl From<&'static str> for Fix {
    fn from(command: &'static str) -> Self {
        Self(Cow::Borrowed(command))
    }
}

impl Deref for Fix {
    type Target = str;

    fn deref(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Fix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a1_every_word_of_a_fix_is_quoted_for_the_shell() {
        for (name, word) in [("eth0", "eth0"), ("$(x)", "'$(x)'"), (";x", "';x'"), ("a'b", r"'a'\''b'")] {
            let fix = Fix::words(["ip", "link", "set", "dev", name, "down"]);
            assert_eq!(&*fix, format!("ip link set dev {word} down"));
        }
        let fix = Fix::words(["echo", "A=1 2"]).append_to("/etc/my file").and("systemctl restart podwire");
        assert_eq!(&*fix, "echo 'A=1 2' >> '/etc/my file' && systemctl restart podwire");
        assert_eq!(&*Fix::words(["df", "-h", "/run"]).then(Fix::words(["df", "*"])), "df -h /run; df '*'");
    }
}
