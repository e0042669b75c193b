//! Calls that the acceptor serves directly, and calls that it hands over to tokio.

use super::*;

/// Each ADD reports its start and waits until it is resumed.
fn paused_adds() -> (Options, mpsc::Receiver<()>, mpsc::Sender<()>) {
    let ((started, received), (resume, resumed)) = (mpsc::channel(), mpsc::channel::<()>());
    let resumed = Mutex::new(resumed);
    let serve = move |request: &Request, _: &Caller<'_>| {
        if let Request::Add(_) = request {
            started.send(()).unwrap();
            resumed.lock().unwrap().recv_timeout(TEST_TIMEOUT).unwrap();
        }
        fixed_result(request)
    };
    (Options { serve: Box::new(serve), ..Options::default() }, received, resume)
}

#[test]
fn hanging_adds_leave_an_acceptor_free() {
    let (options, received, resume) = paused_adds();
    let fixture = Fixture::new(options);
    let mut clients: Vec<Client> = (0..26).map(|_| fixture.connect()).collect();
    for (n, client) in clients.iter_mut().enumerate() {
        client.write_all(post("/v1/cni", &call("ADD", &format!("c{n}"))).as_bytes()).unwrap();
    }
    // Eight workers, two of which are reserved for other classes.
    (0..6).for_each(|_| received.recv_timeout(TEST_TIMEOUT).unwrap());
    wait_until("the remaining ADDs to be queued", || fixture.queue.waiting() == 20);
    assert_eq!(fixture.post("/v1/cni", &call("DEL", "a")), (200, json!({})));
    assert_eq!(fixture.get("/v1/health").0, 200);
    assert!(received.try_recv().is_err(), "a seventh ADD started");
    (0..26).for_each(|_| resume.send(()).unwrap());
    for client in &mut clients {
        assert_eq!(answer(client).0, 200);
    }
}

#[test]
fn a_call_sent_in_pieces_is_served() {
    let fixture = Fixture::new(Options::default());
    let whole = post("/v1/cni", &call("ADD", "a"));
    let body = whole.find("\r\n\r\n").unwrap() + 4;
    for split in [1, 10, body - 2, body, body + 1, whole.len() - 1] {
        for pause in [Duration::ZERO, accept::FIRST_BYTES * 2] {
            let mut client = fixture.connect();
            client.write_all(&whole.as_bytes()[..split]).unwrap();
            thread::sleep(pause);
            client.write_all(&whole.as_bytes()[split..]).unwrap();
            assert_eq!(answer(&mut client).0, 200, "{split} {pause:?}");
        }
    }
}

#[test]
fn several_calls_on_one_connection_are_served() {
    let fixture = Fixture::new(Options::default());
    let last = post("/v1/cni", &call("DEL", "a"));
    let first = post("/v1/cni", &call("ADD", "a")).replace("Connection: close\r\n", "");
    for request in [format!("{first}{last}"), format!("{last}{first}")] {
        let mut client = fixture.connect();
        client.write_all(request.as_bytes()).unwrap();
        let mut text = String::new();
        client.read_to_string(&mut text).unwrap();
        let expected = if request.starts_with(&last) { 1 } else { 2 };
        assert_eq!(text.matches("HTTP/1.1 200").count(), expected, "{text}");
    }
}

#[test]
fn a_complete_call_is_served_by_its_acceptor() {
    let (sender, receiver) = mpsc::channel();
    let serve = move |request: &Request, _: &Caller<'_>| {
        sender.send(thread::current().name().unwrap().to_owned()).unwrap();
        fixed_result(request)
    };
    let fixture = Fixture::new(Options { serve: Box::new(serve), ..Options::default() });
    // On a busy host, a worker serves a call that arrives slowly.
    wait_until("a call that an acceptor serves", || {
        assert_eq!(fixture.post("/v1/cni", &call("ADD", "a")).0, 200);
        receiver.recv_timeout(TEST_TIMEOUT).unwrap().starts_with("podwire-accept")
    });
}

#[test]
fn a_half_closed_connection_counts_as_hung_up() {
    let (started, received) = mpsc::channel();
    let (reported, cancelled) = mpsc::channel();
    let serve = move |request: &Request, caller: &Caller<'_>| {
        assert!(!(caller.cancelled)());
        started.send(()).unwrap();
        reported.send(wait_for_cancel(caller)).unwrap();
        fixed_result(request)
    };
    let fixture = Fixture::new(Options { serve: Box::new(serve), ..Options::default() });
    let mut client = fixture.connect();
    client.write_all(post("/v1/cni", &call("ADD", "a")).as_bytes()).unwrap();
    received.recv_timeout(TEST_TIMEOUT).unwrap();
    client.shutdown(std::net::Shutdown::Write).unwrap();
    assert_eq!(cancelled.recv_timeout(TEST_TIMEOUT), Ok(true));
}

#[test]
fn a_large_answer_blocks_no_acceptor() {
    let serve = |_: &Request, _: &Caller<'_>| {
        Ok(engine::Done { answer: Some(json!("x".repeat(4 << 20))), ..engine::Done::default() })
    };
    let fixture = Fixture::new(Options { serve: Box::new(serve), ..Options::default() });
    let mut client = fixture.connect();
    client.write_all(post("/v1/cni", &call("ADD", "a")).as_bytes()).unwrap();
    // The client does not read yet, and no acceptor waits for it.
    (0..20).for_each(|_| assert_eq!(fixture.post("/v1/cni", &call("JUMP", "a")).0, 500));
    let (status, body) = answer(&mut client);
    assert_eq!((status, body["result"].as_str().unwrap().len()), (200, 4 << 20));
}

/// Hyper's first read requests 8 KiB. The tokio runtime reads the remainder of a larger call.
#[test]
fn a_call_larger_than_the_first_read_is_served() {
    let (sender, receiver) = mpsc::channel();
    let serve = move |request: &Request, _: &Caller<'_>| {
        let Request::Add(call) = request else { panic!("{request:?}") };
        sender.send(call.config.raw.len()).unwrap();
        fixed_result(request)
    };
    let fixture = Fixture::new(Options { serve: Box::new(serve), ..Options::default() });
    for size in [1 << 10, 7 << 10, 8 << 10, 9 << 10, 64 << 10, 900 << 10] {
        let mut large = call("ADD", "a");
        let mut config: serde_json::Value = serde_json::from_str(large["config"].as_str().unwrap()).unwrap();
        config["padding"] = json!("x".repeat(size));
        large["config"] = json!(config.to_string());
        assert_eq!(fixture.post("/v1/cni", &large).0, 200, "{size}");
        assert!(receiver.recv_timeout(TEST_TIMEOUT).unwrap() > size);
        // Two calls on one connection, written without a pause.
        let first = post("/v1/cni", &large).replace("Connection: close\r\n", "");
        let mut client = fixture.connect();
        let mut writer = client.try_clone().unwrap();
        let both = format!("{first}{}", post("/v1/cni", &large));
        let writing = thread::spawn(move || writer.write_all(both.as_bytes()).unwrap());
        let mut text = String::new();
        client.read_to_string(&mut text).unwrap();
        writing.join().unwrap();
        assert_eq!(text.matches("HTTP/1.1 200").count(), 2, "{size}: {text}");
        (0..2).for_each(|_| assert!(receiver.recv_timeout(TEST_TIMEOUT).unwrap() > size));
    }
}
