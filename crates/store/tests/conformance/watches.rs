use std::time::Duration;

use store::{Change, Watched};

use super::both;
use crate::common::{World, events, in_time, put, tell, told};

both!(
    a_watch_from_a_listing_misses_nothing,
    a_watch_sees_its_directory_only_and_in_order,
    a_watch_without_events_answers_that_it_is_current,
    a_cancelled_wait_loses_nothing,
    many_changes_come_in_order_from_several_clients,
    big_changes_come_whole,
);

async fn a_watch_from_a_listing_misses_nothing(world: &World) {
    let (store, other) = (&world.store, world.another());
    store.commit(&[], &[put(&world.key("f/a"), "old")]).await.unwrap();
    let listing = store.list(&world.key("f/")).await.unwrap();
    assert_eq!(listing.entries.len(), 1);
    // Before the watch begins, and after.
    other.commit(&[], &[put(&world.key("f/a"), "new")]).await.unwrap();
    let mut watch = store.watch(&world.key("f/"), listing.revision + 1).await.unwrap();
    other.commit(&[], &[Change::Delete(world.key("f/a"))]).await.unwrap();
    let key = world.key("f/a");
    assert_eq!(told(&mut watch, 2).await, [format!("+{key}=new@2"), format!("-{key}")]);
    // From the middle, too.
    let mut again = store.watch(&world.key("f/"), listing.revision + 2).await.unwrap();
    assert_eq!(told(&mut again, 1).await, [format!("-{key}")]);
}

async fn a_watch_sees_its_directory_only_and_in_order(world: &World) {
    let (store, other) = (&world.store, world.another());
    let from = store.list(&world.key("f/")).await.unwrap().revision + 1;
    let mut watch = store.watch(&world.key("f/"), from).await.unwrap();
    other.commit(&[], &[put(&world.key("f2/a"), "no"), put(&world.key("f"), "no")]).await.unwrap();
    other.commit(&[], &[put(&world.key("f/b"), "1"), put(&world.key("f/a"), "2")]).await.unwrap();
    other.commit(&[], &[Change::Delete(world.key("f/none"))]).await.unwrap();
    other.commit(&[], &[put(&world.key("f/a"), "3")]).await.unwrap();
    let all = events(&mut watch, 3).await;
    let mut first: Vec<String> = all[..2].iter().map(tell).collect();
    first.sort();
    assert_eq!(first, [format!("+{}=2@1", world.key("f/a")), format!("+{}=1@1", world.key("f/b"))]);
    assert_eq!(all[0].revision(), all[1].revision());
    assert_eq!(tell(&all[2]), format!("+{}=3@2", world.key("f/a")));
}

async fn a_watch_without_events_answers_that_it_is_current(world: &World) {
    let store = &world.store;
    let from = store.list(&world.key("f/")).await.unwrap().revision + 1;
    let mut watch = store.watch(&world.key("f/"), from).await.unwrap();
    for _ in 0..2 {
        watch.request_progress().await.unwrap();
        assert_eq!(in_time(watch.next()).await.unwrap(), Watched::Current);
    }
    store.commit(&[], &[put(&world.key("f/a"), "1")]).await.unwrap();
    assert_eq!(told(&mut watch, 1).await, [format!("+{}=1@1", world.key("f/a"))]);
}

async fn a_cancelled_wait_loses_nothing(world: &World) {
    let store = &world.store;
    let from = store.list(&world.key("f/")).await.unwrap().revision + 1;
    let mut watch = store.watch(&world.key("f/"), from).await.unwrap();
    let mut seen = Vec::new();
    for n in 0..20 {
        store.commit(&[], &[put(&world.key("f/a"), &n.to_string())]).await.unwrap();
        // Often too short.
        if let Ok(next) = tokio::time::timeout(Duration::from_micros(n * 100), watch.next()).await {
            let Watched::Events { events, .. } = next.unwrap() else { panic!("compacted") };
            seen.extend(events.iter().map(tell));
        }
    }
    while seen.len() < 20 {
        seen.extend(told(&mut watch, 1).await);
    }
    let expected: Vec<String> = (0..20).map(|n| format!("+{}={n}@{}", world.key("f/a"), n + 1)).collect();
    assert_eq!(seen, expected);
}

async fn many_changes_come_in_order_from_several_clients(world: &World) {
    let from = world.store.list(&world.key("f/")).await.unwrap().revision + 1;
    let mut watch = world.store.watch(&world.key("f/"), from).await.unwrap();
    let writers: Vec<_> = (0..3)
        .map(|w| {
            let (store, key) = (world.another(), world.key(&format!("f/{w}")));
            tokio::spawn(async move {
                for n in 0..30 {
                    store.commit(&[], &[put(&key, &n.to_string())]).await.unwrap();
                }
            })
        })
        .collect();
    let all: Vec<String> = events(&mut watch, 90).await.iter().map(tell).collect();
    for writer in writers {
        in_time(writer).await.unwrap();
    }
    for w in 0..3 {
        let key = world.key(&format!("f/{w}"));
        let expected: Vec<String> = (0..30).map(|n| format!("+{key}={n}@{}", n + 1)).collect();
        let its: Vec<String> = all.iter().filter(|told| told.contains(&key)).cloned().collect();
        assert_eq!(its, expected);
    }
}

async fn big_changes_come_whole(world: &World) {
    let from = world.store.list(&world.key("f/")).await.unwrap().revision + 1;
    for n in 0..6 {
        let value = n.to_string().repeat(1 << 20);
        world.store.commit(&[], &[put(&world.key(&format!("f/{n}")), &value)]).await.unwrap();
    }
    let mut watch = world.store.watch(&world.key("f/"), from).await.unwrap();
    let all = events(&mut watch, 6).await;
    for (n, event) in all.iter().enumerate() {
        let store::Event::Put(entry) = event else { panic!("{}", event.key()) };
        assert_eq!((entry.value.len(), entry.value[0]), (1 << 20, b'0' + u8::try_from(n).unwrap()));
    }
}
