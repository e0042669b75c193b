//! Two tenants: their pods cannot communicate until a share allows it, and `podwire explain` names the rule.

use std::collections::BTreeSet;
use std::fs;
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use lab::{Ns, wait_until};

use super::{DemoPod, REPAIR_TIMEOUT, RunningDemo, line, title};

const PORT: u16 = 80;
/// How long a connection attempt may take that policies deny.
const DENIED: Duration = Duration::from_millis(400);

const TENANTS: &str = "\
apiVersion: podwire.io/v1alpha1
kind: Tenant
metadata: {name: blue}
spec: {}
---
apiVersion: podwire.io/v1alpha1
kind: Tenant
metadata: {name: red}
spec: {}
";

const SHARE: &str = "\
apiVersion: podwire.io/v1alpha1
kind: Share
metadata: {name: web, tenant: blue}
spec: {with: [red], ports: [tcp/80]}
";

impl RunningDemo<'_> {
    pub(super) fn tenants(&self) -> Result<[DemoPod; 2]> {
        title("Two tenants. Pod d of tenant red connects to pod c of tenant blue:");
        self.apply("tenants", TENANTS)?;
        // The agent receives its own change from the store.
        let table = ["nft", "list", "table", "inet", "podwire-policy"];
        wait_until("policies in force", REPAIR_TIMEOUT, || Ok(self.node.run(&table, b"")?.success()))?;
        let pods = [self.attach_in("c", Some("blue"))?, self.attach_in("d", Some("red"))?];
        let [blue, red] = &pods;
        for to in blue.addresses()? {
            let _server = listen(blue, to)?;
            ensure!(!connects(&red.pod, to)?, "a pod of another tenant reached {to} without a share");
            line("tcp pod d → pod c", &format!("{to:<12}no reply"), None);
        }
        let reason = self.explain()?;
        title("Output of `podwire explain demo/d demo/c --port 80`:");
        self.quote(&reason);
        title("A share of tenant blue allows it:");
        self.apply("share", SHARE)?;
        for to in blue.addresses()? {
            let _server = listen(blue, to)?;
            let started = Instant::now();
            wait_until("the share", REPAIR_TIMEOUT, || connects(&red.pod, to))?;
            line("tcp pod d → pod c", &format!("{to:<12}connected"), Some(started.elapsed()));
        }
        let reason = self.explain()?;
        let is_decisive = |text: &&str| text.contains("share web") || text.starts_with("verdict");
        let reasons: BTreeSet<&str> = reason.lines().map(str::trim).filter(is_decisive).collect();
        reasons.iter().for_each(|text| line("podwire explain", text, None));
        Ok(pods)
    }

    /// Why the flow from the red to the blue pod is denied or allowed.
    fn explain(&self) -> Result<String> {
        let run_dir = self.agent.run_dir().display().to_string();
        let args = ["explain", "demo/d", "demo/c", "--port", "80", "--run-dir", &run_dir];
        let explained = self.agent.podwire(&args)?;
        let (answer, error) = (&explained.stdout, &explained.stderr);
        ensure!(answer.contains("verdict"), "podwire explain: {answer}{error}");
        Ok(explained.stdout)
    }

    fn file(&self, name: &str) -> String {
        self.node.dir().join(format!("{name}.yaml")).display().to_string()
    }

    fn apply(&self, name: &str, documents: &str) -> Result<()> {
        let (file, run_dir) = (self.file(name), self.agent.run_dir().display().to_string());
        fs::write(&file, documents).with_context(|| format!("cannot write {file}"))?;
        let applied = self.agent.podwire(&["apply", "-f", &file, "--run-dir", &run_dir])?;
        ensure!(applied.success(), "podwire apply: {}{}", applied.stdout, applied.stderr);
        applied.stdout.lines().for_each(|done| line("podwire apply", done, None));
        Ok(())
    }
}

fn listen(pod: &DemoPod, ip: IpAddr) -> Result<TcpListener> {
    pod.pod.enter(|| TcpListener::bind((ip, PORT)))?.with_context(|| format!("cannot listen on {ip}"))
}

fn connects(from: &Ns, to: IpAddr) -> Result<bool> {
    from.enter(|| TcpStream::connect_timeout(&SocketAddr::new(to, PORT), DENIED).is_ok())
}
