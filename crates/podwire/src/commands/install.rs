//! `podwire install`: the plugin first, the config last, and only when pods can be served: a config is what makes a
//! runtime send them.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
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
use crate::print;

const WOULD_FAIL: &str = "nothing was installed: the first pod of this network would fail";
/// How long one question may take.
const QUESTION: Duration = Duration::from_secs(5);
/// An agent that starts is ready within a fraction of a second.
const PAUSE: Duration = Duration::from_millis(50);

pub(crate) fn run(args: &InstallArgs) -> Result<()> {
    if args.network.standalone { standalone(args) } else { with_agent(args) }
}

fn with_agent(args: &InstallArgs) -> Result<()> {
    let mut config = configuration(args)?;
    let client = Client::new(&config.socket);
    let end = Instant::now() + Duration::from_secs(args.timeout);
    wait_for(args.timeout, end, || is_ready(&client))?;
    if installs_itself(&client)? {
        return kept_by_agent(args, &client, end);
    }
    let status = status(&client)?;
    // What runs is what counts: the agent may have been started with other flags than this was.
    config.network = settings_of(&status)?;
    let network = Arc::new(network_of(&status, &config.network)?);
    config.run_dir = status.run_dir;
    config.socket = status.socket;
    let install = config.install.as_ref().context("the configuration says that nothing is installed")?;
    let directories = install.directories();
    let installer = Installer::new(&config)?.context("the configuration says that nothing is installed")?;
    installer.set_network(network);
    put(&installer, &directories)
}

fn standalone(args: &InstallArgs) -> Result<()> {
    let (wanted, places) = (&args.network, &args.places);
    let run_dir = args.which.run_dir.clone().unwrap_or_else(|| netconf::DEFAULT_RUN_DIR.into());
    let found = Runtimes::directories();
    let what = install::StandaloneInstall {
        network: NetworkSettings {
            name: wanted.name.clone(),
            mode: wanted.mode.into(),
            bridge: wanted.bridge.clone(),
            subnets: wanted.subnets.clone(),
            mtu: None,
            connections_per_pod: None,
            masquerade: true,
        },
        install: config::InstallConfig {
            plugin: places.plugin.clone().map_or_else(plugin_beside_us, Ok)?,
            plugin_dir: places.plugin_dir.clone().unwrap_or(found.plugins),
            config_dir: places.config_dir.clone().unwrap_or(found.configs),
            config_name: places.config_name.clone().unwrap_or_else(|| format!("10-{}.conflist", wanted.name)),
            template: places.template.clone(),
        },
        run_dir,
        state_dir: places.state_dir.clone().unwrap_or_else(|| "/var/lib/podwire".into()),
    };
    let directories = what.install.directories();
    let installer = Installer::standalone(what)?;
    can_serve(&installer.render()?)?;
    put(&installer, &directories)
}

/// The plugin's own STATUS, for every Podwire network of the config: what it refuses now, it would refuse to the first pod.
/// A firewall that drops packets of pods fails no ADD, and is a warning.
fn can_serve(list: &str) -> Result<()> {
    let list: Value = serde_json::from_str(list).context("the network config is no JSON")?;
    for plugin in list["plugins"].as_array().into_iter().flatten().filter(|plugin| plugin["type"] == PLUGIN) {
        let mut config = plugin.clone();
        config["name"] = list["name"].clone();
        // STATUS came with this version.
        config["cniVersion"] = "1.1.0".into();
        let config = cni::NetworkConfig::from_slice(config.to_string().as_bytes())?;
        let run_dir = netconf::LocalPaths::parse(&config)?.run_dir;
        let is_new = NodeState::open_existing(&run_dir).context(WOULD_FAIL)?.is_none();
        let warn = |message: &str| print::warn(format_args!("podwire: {message}"));
        let answer = engine::serve(&cni::Request::Status(config.clone()), &Caller::standalone(&warn));
        // STATUS makes the state directory, as an ADD would.
        if let Some(state) = NodeState::open_existing(&run_dir)?.filter(|_| is_new) {
            state.remove()?;
        }
        match answer {
            Ok(_) => {}
            Err(error) if error.code == cni::ErrorCode::LimitedConnectivity => {
                print::warn(format_args!("podwire: {error}"));
            }
            Err(error) if error.details.starts_with(Code::SubnetOverlap.as_str()) => {
                // A line of its own, and never broken: it is to be pasted.
                let command = with_free_subnets(&config)?.map_or(String::new(), |fix| format!("\n    {fix}"));
                bail!("{WOULD_FAIL}: {error}{command}");
            }
            Err(error) => return Err(error).context(WOULD_FAIL),
        }
    }
    Ok(())
}

/// This command with free subnets in the place of those that overlap.
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

fn put(installer: &Installer, directories: &Directories) -> Result<()> {
    let done = installer.install().map_err(|error| match error.fix() {
        Some(command) => anyhow!("{error}\n    {command}"),
        None => error.into(),
    })?;
    if done.is_empty() {
        print::say("everything is in place already")?;
    }
    done.iter().try_for_each(print::say_wrapped)?;
    let runtimes = Runtimes::detect(Path::new("/"));
    runtimes.complaints(directories).iter().for_each(print::warn);
    runtimes.unreadable.iter().for_each(print::warn);
    Ok(())
}

/// The agent's own configuration, with what was said here over it.
fn configuration(args: &InstallArgs) -> Result<Config> {
    let (which, places) = (&args.which, &args.places);
    let given = [
        ("--config", &args.config),
        ("--run-dir", &which.run_dir),
        ("--socket", &which.socket),
        ("--state-dir", &places.state_dir),
        ("--install-plugin", &places.plugin),
        ("--install-plugin-dir", &places.plugin_dir),
        ("--install-config-dir", &places.config_dir),
        ("--install-config-name", &places.config_name.clone().map(PathBuf::from)),
        ("--install-template", &places.template),
    ];
    let mut argv: Vec<OsString> = vec!["install".into(), "--install".into()];
    for (flag, value) in given {
        argv.extend(value.iter().flat_map(|value| [flag.into(), value.clone().into_os_string()]));
    }
    let matches = Flags::augment_args(clap::Command::new("install")).try_get_matches_from(argv)?;
    Ok(Config::load_with(&Flags::from_arg_matches(&matches)?, std::env::vars_os(), Runtimes::directories)?)
}

/// Waits until there is nothing more to wait for, and says on stderr what for.
fn wait_for(seconds: u64, end: Instant, look: impl Fn() -> Result<()>) -> Result<()> {
    let mut told = String::new();
    loop {
        let Err(error) = look() else { return Ok(()) };
        if Instant::now() >= end {
            let message = format!("nothing was installed: the agent is not ready after {seconds} s");
            return Err(error.context(message));
        }
        let why = print::causes(&error);
        if why != told {
            print::warn(format_args!("waiting for the agent: {why}"));
            told = why;
        }
        sleep(PAUSE.min(end.saturating_duration_since(Instant::now())));
    }
}

/// Or why not.
fn is_ready(client: &Client) -> Result<()> {
    let answer = client.get(api::READY, QUESTION)?;
    if answer.status == 200 {
        return Ok(());
    }
    let readiness = serde_json::from_slice::<Readiness>(&answer.body).ok();
    match readiness.and_then(|readiness| readiness.conditions.into_iter().next()) {
        Some(found) => bail!("{} ({})", found.message, found.summary()),
        None => bail!("it answers {}", answer.status),
    }
}

fn status(client: &Client) -> Result<Status> {
    let answer = client.get(api::STATUS, QUESTION)?;
    ensure!(
        answer.status == 200,
        "the agent answers {}: {}",
        answer.status,
        String::from_utf8_lossy(&answer.body)
    );
    serde_json::from_slice(&answer.body).context("the agent is of another version")
}

/// The whole network, of which this node may own a part only.
fn settings_of(status: &Status) -> Result<NetworkSettings> {
    let network = &status.network;
    ensure!(!network.subnets.is_empty(), "the agent is of another version: it does not tell its network");
    Ok(NetworkSettings {
        name: network.name.as_str().try_into()?,
        mode: serde_json::from_value(network.mode.clone().into())
            .context("the agent is of another version")?,
        bridge: network.bridge.as_str().try_into()?,
        subnets: network.subnets.clone(),
        mtu: network.mtu,
        connections_per_pod: None,
        masquerade: network.masquerade,
    })
}

/// The network with the blocks that this node owns. A node that is alone owns all.
fn network_of(status: &Status, settings: &NetworkSettings) -> Result<Network> {
    let blocks: Vec<_> = status.network.blocks.iter().map(|block| block.block).collect();
    ensure!(!blocks.is_empty(), "the agent does not tell which blocks this node has: see `podwire status`");
    Ok(Network::new(settings, blocks, status.network.mtu)?)
}

/// An agent with `install.enabled` puts the files there itself, and back; two that do so would take turns for ever. That
/// it has a config for runtimes tells it, also before the first file is there.
fn installs_itself(client: &Client) -> Result<bool> {
    Ok(client.get(api::CNI_CONFIG, QUESTION)?.status == 200)
}

fn kept_by_agent(args: &InstallArgs, client: &Client, end: Instant) -> Result<()> {
    wait_for(args.timeout, end, || {
        let files = status(client)?.installed;
        match files.iter().find(|file| !file.ok) {
            Some(bad) => {
                bail!("{}: {}", bad.path.display(), bad.message.as_deref().unwrap_or("not right"))
            }
            None if files.is_empty() => bail!("it installs by itself, and has not done so yet"),
            None => Ok(()),
        }
    })?;
    let (files, places) = (status(client)?.installed, &args.places);
    for dir in [&places.plugin_dir, &places.config_dir].into_iter().flatten() {
        ensure!(
            files.iter().any(|file| file.path.parent() == Some(dir)),
            "the agent installs by itself, and not into {}: change install.plugin_dir and install.config_dir in its \
             configuration",
            dir.display()
        );
    }
    files.iter().try_for_each(|file| {
        print::say_wrapped(format_args!("{} is kept in place by the agent", file.path.display()))
    })
}

fn plugin_beside_us() -> Result<PathBuf> {
    let us = std::env::current_exe().context("cannot find my own program file")?;
    Ok(us.with_file_name(PLUGIN))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn b10_the_command_with_other_subnets_keeps_all_other_words() {
        let free = ["10.84.0.0/16".parse().unwrap(), "fd00:89::/64".parse().unwrap()];
        for asked in ["", "--subnet 10.1.0.0/16 --subnet fd00::/64 ", "--subnet=10.1.0.0/16 "] {
            let line = format!("podwire install --standalone {asked}--name blue");
            let fix = with_subnets(line.split(' ').map(str::to_owned), &free);
            let wanted =
                "podwire install --standalone --name blue --subnet 10.84.0.0/16 --subnet fd00:89::/64";
            assert_eq!(&*fix, wanted, "{asked}");
        }
    }
}
