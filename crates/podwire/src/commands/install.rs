//! `podwire install`: installs the plugin, then the config. A runtime starts pods as soon as it finds a config, so nothing is
//! installed before pods can be served.

use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail, ensure};
use api::{Client, Readiness, Status};
use clap::{Args, FromArgMatches};
use config::Directories;
use config::{Config, Flags};
use engine::Caller;
use engine::overlap::{self, ObservedNetworks};
use engine::state::NodeState;
use install::runtimes::Runtimes;
use install::{self, Installer, PLUGIN};
use ipnet::IpNet;
use netconf::{Network, NetworkSettings};
use netlink::RtSocket;
use serde_json::Value;
use types::{Code, Fix};

use crate::cli::InstallArgs;
use crate::commands::plugins::runtimes_of_node;
use crate::print;

const WOULD_FAIL: &str = "nothing was installed: the first pod of this network would fail";
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);
/// An agent is usually ready within a fraction of a second.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

pub(crate) fn run(args: &InstallArgs) -> Result<()> {
    if args.network.standalone { standalone(args) } else { with_agent(args) }
}

fn with_agent(args: &InstallArgs) -> Result<()> {
    let mut config = configuration(args)?;
    let client = Client::new(&config.socket);
    let deadline = Instant::now() + Duration::from_secs(args.timeout);
    wait_for(args.timeout, deadline, || check_ready(&client))?;
    if agent_installs(&client)? {
        return wait_for_agent_files(args, &client, deadline);
    }
    let status = status(&client)?;
    // The running agent decides: it may have been started with other flags.
    config.network = settings_of(&status)?;
    let network = Arc::new(network_of(&status, &config.network)?);
    config.run_dir = status.run_dir;
    config.socket = status.socket;
    let install = config.install.as_ref().context("installation is disabled in the configuration")?;
    let directories = install.directories();
    let installer = Installer::new(&config)?.context("installation is disabled in the configuration")?;
    installer.set_network(network);
    write_files(&installer, &directories)
}

fn standalone(args: &InstallArgs) -> Result<()> {
    let (settings, paths) = (&args.network, &args.paths);
    let run_dir = args.agent.run_dir.clone().unwrap_or_else(|| netconf::DEFAULT_RUN_DIR.into());
    let runtime = Runtimes::directories();
    let request = install::StandaloneInstall {
        network: NetworkSettings {
            name: settings.name.clone(),
            mode: settings.mode.into(),
            bridge: settings.bridge.clone(),
            subnets: settings.subnets.clone(),
            mtu: None,
            connections_per_pod: None,
            masquerade: true,
        },
        install: config::InstallConfig {
            plugin: paths.plugin.clone().map_or_else(default_plugin, Ok)?,
            plugin_dir: paths.plugin_dir.clone().unwrap_or(runtime.plugins),
            config_dir: paths.config_dir.clone().unwrap_or(runtime.configs),
            config_name: paths
                .config_name
                .clone()
                .unwrap_or_else(|| format!("10-{}.conflist", settings.name)),
            template: paths.template.clone(),
        },
        run_dir,
        state_dir: paths.state_dir.clone().unwrap_or_else(|| "/var/lib/podwire".into()),
    };
    let directories = request.install.directories();
    let installer = Installer::standalone(request)?;
    check_status(&installer.render()?)?;
    write_files(&installer, &directories)
}

/// Runs CNI STATUS for every Podwire network of the config. An error of STATUS would also fail the first ADD. A firewall that
/// drops pod traffic does not fail an ADD, so it is a warning.
fn check_status(list: &str) -> Result<()> {
    let list: Value = serde_json::from_str(list).context("the network config is not valid JSON")?;
    for plugin in list["plugins"].as_array().into_iter().flatten().filter(|plugin| plugin["type"] == PLUGIN) {
        let mut config = plugin.clone();
        config["name"] = list["name"].clone();
        // The first version with STATUS.
        config["cniVersion"] = "1.1.0".into();
        let config = cni::NetworkConfig::from_slice(config.to_string().as_bytes())?;
        let run_dir = netconf::LocalPaths::parse(&config)?.run_dir;
        let is_new = NodeState::open_existing(&run_dir).context(WOULD_FAIL)?.is_none();
        let warn = |message: &str| print::warn(format_args!("podwire: {message}"));
        let answer = engine::serve(&cni::Request::Status(config.clone()), &Caller::standalone(&warn));
        // STATUS creates the state directory, as an ADD does.
        if let Some(state) = NodeState::open_existing(&run_dir)?.filter(|_| is_new) {
            state.remove()?;
        }
        match answer {
            Ok(_) => {}
            Err(error) if error.code == cni::ErrorCode::LimitedConnectivity => {
                print::warn(format_args!("podwire: {error}"));
            }
            Err(error) if error.details.starts_with(Code::SubnetOverlap.as_str()) => {
                // On its own line and not wrapped, because it is pasted.
                let command = with_free_subnets(&config)?.map_or(String::new(), |fix| format!("\n    {fix}"));
                bail!("{WOULD_FAIL}: {error}{command}");
            }
            Err(error) => return Err(error).context(WOULD_FAIL),
        }
    }
    Ok(())
}

/// The command line with free subnets instead of the overlapping ones.
fn with_free_subnets(config: &cni::NetworkConfig) -> Result<Option<Fix>> {
    let conf = netconf::NetConf::parse(config)?;
    let subnets = overlap::routed_subnets(&conf);
    let observed = ObservedNetworks::of(&mut RtSocket::open()?, &subnets)?;
    let network = overlap::NetworkExtent { name: &config.name, bridge: &conf.bridge, subnets: &subnets };
    let args = std::env::args_os().map(|word| word.to_string_lossy().into_owned());
    Ok(overlap::alternative(&network, &observed).map(|free| with_subnets(args, &free)))
}

fn with_subnets(args: impl Iterator<Item = String>, subnets: &[IpNet]) -> Fix {
    let mut is_value = false;
    let is_kept = |word: &String| {
        let was_value = std::mem::replace(&mut is_value, word == "--subnet");
        !was_value && !is_value && !word.starts_with("--subnet=")
    };
    let given = subnets.iter().flat_map(|subnet| ["--subnet".to_owned(), subnet.to_string()]);
    Fix::words(args.filter(is_kept).chain(given))
}

fn write_files(installer: &Installer, directories: &Directories) -> Result<()> {
    let done = installer.install().map_err(|error| match error.fix() {
        Some(command) => anyhow!("{error}\n    {command}"),
        None => error.into(),
    })?;
    if done.is_empty() {
        print::line("all files are up to date")?;
    }
    done.iter().try_for_each(print::sentence)?;
    let runtimes = runtimes_of_node();
    runtimes.mismatches(directories).iter().for_each(print::warn);
    runtimes.unreadable.iter().for_each(print::warn);
    Ok(())
}

/// The agent's configuration. Arguments of this command have precedence.
fn configuration(args: &InstallArgs) -> Result<Config> {
    let (selector, paths) = (&args.agent, &args.paths);
    let given = [
        ("--config", &args.config),
        ("--run-dir", &selector.run_dir),
        ("--socket", &selector.socket),
        ("--state-dir", &paths.state_dir),
        ("--install-plugin", &paths.plugin),
        ("--install-plugin-dir", &paths.plugin_dir),
        ("--install-config-dir", &paths.config_dir),
        ("--install-config-name", &paths.config_name.clone().map(PathBuf::from)),
        ("--install-template", &paths.template),
    ];
    let mut argv: Vec<OsString> = vec!["install".into(), "--install".into()];
    for (flag, value) in given {
        argv.extend(value.iter().flat_map(|value| [flag.into(), value.clone().into_os_string()]));
    }
    let matches = Flags::augment_args(clap::Command::new("install")).try_get_matches_from(argv)?;
    Ok(Config::load_with(&Flags::from_arg_matches(&matches)?, std::env::vars_os(), Runtimes::directories)?)
}

/// Repeats the check until it succeeds. Every new reason to wait is printed on stderr.
fn wait_for(seconds: u64, deadline: Instant, check: impl Fn() -> Result<()>) -> Result<()> {
    let mut last_reason = String::new();
    loop {
        let Err(error) = check() else { return Ok(()) };
        if Instant::now() >= deadline {
            let message = format!("nothing was installed: the agent is not ready after {seconds} s");
            return Err(error.context(message));
        }
        let reason = print::causes(&error);
        if reason != last_reason {
            print::warn(format_args!("waiting for the agent: {reason}"));
            last_reason = reason;
        }
        sleep(POLL_INTERVAL.min(deadline.saturating_duration_since(Instant::now())));
    }
}

/// Fails with the reason if the agent is not ready.
fn check_ready(client: &Client) -> Result<()> {
    let answer = client.get(api::READY, REQUEST_TIMEOUT)?;
    if answer.status == 200 {
        return Ok(());
    }
    let readiness = serde_json::from_slice::<Readiness>(&answer.body).ok();
    match readiness.and_then(|readiness| readiness.conditions.into_iter().next()) {
        Some(found) => bail!("{} ({})", found.message, found.summary()),
        None => bail!("the agent answers {}", answer.status),
    }
}

fn status(client: &Client) -> Result<Status> {
    let answer = client.get(api::STATUS, REQUEST_TIMEOUT)?;
    ensure!(
        answer.status == 200,
        "the agent answers {}: {}",
        answer.status,
        String::from_utf8_lossy(&answer.body)
    );
    serde_json::from_slice(&answer.body).context("the agent has another version")
}

/// The network of the cluster. This node may own only some blocks of it.
fn settings_of(status: &Status) -> Result<NetworkSettings> {
    let network = &status.network;
    ensure!(!network.subnets.is_empty(), "the agent has another version: its status has no network");
    Ok(NetworkSettings {
        name: network.name.as_str().try_into()?,
        mode: serde_json::from_value(network.mode.clone().into()).context("the agent has another version")?,
        bridge: network.bridge.as_str().try_into()?,
        subnets: network.subnets.clone(),
        mtu: network.mtu,
        connections_per_pod: None,
        masquerade: network.masquerade,
    })
}

/// The network with the blocks of this node. A single node owns the complete network.
fn network_of(status: &Status, settings: &NetworkSettings) -> Result<Network> {
    let blocks: Vec<_> = status.network.blocks.iter().map(|block| block.block).collect();
    ensure!(!blocks.is_empty(), "the agent reports no block of this node; see 'podwire status'");
    Ok(Network::new(settings, blocks, status.network.mtu)?)
}

/// An agent with `install.enabled` installs and repairs the files itself. If this command wrote them too, both would overwrite
/// each other. Such an agent serves its config for runtimes, also before it has written the first file.
fn agent_installs(client: &Client) -> Result<bool> {
    Ok(client.get(api::CNI_CONFIG, REQUEST_TIMEOUT)?.status == 200)
}

fn wait_for_agent_files(args: &InstallArgs, client: &Client, deadline: Instant) -> Result<()> {
    wait_for(args.timeout, deadline, || {
        let files = status(client)?.installed;
        match files.iter().find(|file| !file.ok) {
            Some(bad) => {
                bail!("{}: {}", bad.path.display(), bad.message.as_deref().unwrap_or("not up to date"))
            }
            None if files.is_empty() => bail!("the agent has not installed its files yet"),
            None => Ok(()),
        }
    })?;
    let (files, paths) = (status(client)?.installed, &args.paths);
    for dir in [&paths.plugin_dir, &paths.config_dir].into_iter().flatten() {
        ensure!(
            files.iter().any(|file| file.path.parent() == Some(dir)),
            "the agent installs its files itself, but not into {}; change install.plugin_dir and install.config_dir in \
             its configuration",
            dir.display()
        );
    }
    files
        .iter()
        .try_for_each(|file| print::sentence(format_args!("{} is managed by the agent", file.path.display())))
}

/// The plugin beside this program.
fn default_plugin() -> Result<PathBuf> {
    let program = std::env::current_exe().context("cannot determine the path of this program")?;
    Ok(program.with_file_name(PLUGIN))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn b10_other_arguments_are_kept_in_the_command_with_free_subnets() {
        let free = ["10.84.0.0/16".parse().unwrap(), "fd00:89::/64".parse().unwrap()];
        for given in ["", "--subnet 10.1.0.0/16 --subnet fd00::/64 ", "--subnet=10.1.0.0/16 "] {
            let line = format!("podwire install --standalone {given}--name blue");
            let fix = with_subnets(line.split(' ').map(str::to_owned), &free);
            let wanted =
                "podwire install --standalone --name blue --subnet 10.84.0.0/16 --subnet fd00:89::/64";
            assert_eq!(&*fix, wanted, "{given}");
        }
    }
}
