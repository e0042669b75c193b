//! Calls that the acceptor serves itself, and calls that it gives to the runtime.

use super::*;

/// ADDs wait until they are told to go on.
fn gated() -> (Options, mpsc::Receiver<()>, mpsc::Sender<()>) {
    let ((begun, observed), (go, gone)) = (mpsc::channel(), mpsc::channel::<()>());
    let gone = Mutex::new(gone);
    let serve = move |request: &Request, _: &Caller<'_>| {
        if let Request::Add(_) = request {
            begun.send(()).unwrap();
            gone.lock().unwrap().recv_timeout(SOON).unwrap();
        }
        done(request)
    };
    (Options { serve: Box::new(serve), ..Options::default() }, observed, go)
}

#[test]
fn adds_that_hang_leave_an_acceptor_free() {
    let (options, observed, go) = gated();
    let site = Site::new(options);
    let mut clients: Vec<Client> = (0..26).map(|_| site.connect()).collect();
    for (n, client) in clients.iter_mut().enumerate() {
        client.write_all(post("/v1/cni", &call("ADD", &format!("c{n}"))).as_bytes()).unwrap();
    }
    // Eight may work at once, and two of them are for the other classes.
    (0..6).for_each(|_| observed.recv_timeout(SOON).unwrap());
    wait_until("the others in the queue", || site.queue.waiting() == 20);
    assert_eq!(site.post("/v1/cni", &call("DEL", "a")), (200, json!({})));
    assert_eq!(site.get("/v1/health").0, 200);
    assert!(observed.try_recv().is_err(), "a seventh ADD began");
    (0..26).for_each(|_| go.send(()).unwrap());
    for client in &mut clients {
        assert_eq!(answer(client).0, 200);
    }
}

#[test]
fn a_call_in_pieces_is_served_as_well() {
    let site = Site::new(Options::default());
    let whole = post("/v1/cni", &call("ADD", "a"));
    let body = whole.find("\r\n\r\n").unwrap() + 4;
    for block_layout in [1, 10, body - 2, body, body + 1, whole.len() - 1] {
        for pause in [Duration::ZERO, accept::FIRST_BYTES * 2] {
            let mut client = site.connect();
            client.write_all(&whole.as_bytes()[..block_layout]).unwrap();
            thread::sleep(pause);
            client.write_all(&whole.as_bytes()[block_layout..]).unwrap();
            assert_eq!(answer(&mut client).0, 200, "{block_layout} {pause:?}");
        }
    }
}

#[test]
fn several_calls_on_one_connection() {
    let site = Site::new(Options::default());
    let last = post("/v1/cni", &call("DEL", "a"));
    let first = post("/v1/cni", &call("ADD", "a")).replace("Connection: close\r\n", "");
    for request in [format!("{first}{last}"), format!("{last}{first}")] {
        let mut client = site.connect();
        client.write_all(request.as_bytes()).unwrap();
        let mut text = String::new();
        client.read_to_string(&mut text).unwrap();
        let asked = if request.starts_with(&last) { 1 } else { 2 };
        assert_eq!(text.matches("HTTP/1.1 200").count(), asked, "{text}");
    }
}

#[test]
fn a_whole_call_is_served_by_its_acceptor() {
    let (sender, names) = mpsc::channel();
    let serve = move |request: &Request, _: &Caller<'_>| {
        sender.send(thread::current().name().unwrap().to_owned()).unwrap();
        done(request)
    };
    let site = Site::new(Options { serve: Box::new(serve), ..Options::default() });
    // A client that is slow to send its call on a busy machine is served by a worker.
    wait_until("a call that an acceptor serves", || {
        assert_eq!(site.post("/v1/cni", &call("ADD", "a")).0, 200);
        names.recv_timeout(SOON).unwrap().starts_with("podwire-accept")
    });
}

#[test]
fn a_half_closed_connection_counts_as_hung_up() {
    let (begun, observed) = mpsc::channel();
    let (reported, cancelled) = mpsc::channel();
    let serve = move |request: &Request, caller: &Caller<'_>| {
        assert!(!(caller.cancelled)());
        begun.send(()).unwrap();
        reported.send(hung_up_in_time(caller)).unwrap();
        done(request)
    };
    let site = Site::new(Options { serve: Box::new(serve), ..Options::default() });
    let mut client = site.connect();
    client.write_all(post("/v1/cni", &call("ADD", "a")).as_bytes()).unwrap();
    observed.recv_timeout(SOON).unwrap();
    client.shutdown(std::net::Shutdown::Write).unwrap();
    assert_eq!(cancelled.recv_timeout(SOON), Ok(true));
}

#[test]
fn a_large_answer_waits_for_its_reader() {
    let serve = |_: &Request, _: &Caller<'_>| {
        Ok(engine::Done { answer: Some(json!("x".repeat(4 << 20))), ..engine::Done::default() })
    };
    let site = Site::new(Options { serve: Box::new(serve), ..Options::default() });
    let mut client = site.connect();
    client.write_all(post("/v1/cni", &call("ADD", "a")).as_bytes()).unwrap();
    // The client does not read yet, and no acceptor waits for it.
    (0..20).for_each(|_| assert_eq!(site.post("/v1/cni", &call("JUMP", "a")).0, 500));
    let (status, body) = answer(&mut client);
    assert_eq!((status, body["result"].as_str().unwrap().len()), (200, 4 << 20));
}

/// The first read of hyper asks for 8 KiB. The runtime reads the rest of a larger call.
#[test]
fn a_call_larger_than_the_first_read_is_served_whole() {
    let (sender, names) = mpsc::channel();
    let serve = move |request: &Request, _: &Caller<'_>| {
        let Request::Add(call) = request else { panic!("{request:?}") };
        sender.send(call.config.raw.len()).unwrap();
        done(request)
    };
    let site = Site::new(Options { serve: Box::new(serve), ..Options::default() });
    for size in [1 << 10, 7 << 10, 8 << 10, 9 << 10, 64 << 10, 900 << 10] {
        let mut large = call("ADD", "a");
        let mut config: serde_json::Value = serde_json::from_str(large["config"].as_str().unwrap()).unwrap();
        config["padding"] = json!("x".repeat(size));
        large["config"] = json!(config.to_string());
        assert_eq!(site.post("/v1/cni", &large).0, 200, "{size}");
        assert!(names.recv_timeout(SOON).unwrap() > size);
        // Twice on one connection, all at once.
        let first = post("/v1/cni", &large).replace("Connection: close\r\n", "");
        let mut client = site.connect();
        let mut writer = client.try_clone().unwrap();
        let both = format!("{first}{}", post("/v1/cni", &large));
        let writing = thread::spawn(move || writer.write_all(both.as_bytes()).unwrap());
        let mut text = String::new();
        client.read_to_string(&mut text).unwrap();
        writing.join().unwrap();
        assert_eq!(text.matches("HTTP/1.1 200").count(), 2, "{size}: {text}");
        (0..2).for_each(|_| assert!(names.recv_timeout(SOON).unwrap() > size));
    }
}
