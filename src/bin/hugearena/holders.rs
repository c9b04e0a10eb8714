//! `hugearena holders`: who has the pages that are gone.

use std::fmt::Write;

use hugearena::doctor::{Held, HeldFile, Holder, Holders, Via};
use hugearena::supply::{Pool, Supply};

use crate::json::Json;
use crate::size;
use crate::{Answer, status};

#[derive(Debug, clap::Args)]
pub struct Options {}

pub fn run(_: &Options) -> Answer {
    let pools = Supply::read().pools;
    let found = Holders::find();
    let json = Json::Object(vec![
        ("processes", Json::list(found.processes.iter().map(holder_json))),
        ("files", Json::list(found.files.iter().map(|file| file_json(&found, file)))),
        ("pools", Json::list(pools.iter().map(|pool| pool_json(&found, pool)))),
        ("unreadable_processes", found.unreadable.into()),
    ]);
    Answer { status: status(true), text: text(&found, &pools), json }
}

/// Pages in use, and those of them whose holders were not found. The two were not read at once.
fn unexplained(found: &Holders, pool: &Pool) -> (u64, u64) {
    let in_use = pool.total.saturating_sub(pool.free);
    let explained = found.explained_bytes(pool.page_size) / pool.page_size.bytes() as u64;
    (in_use, in_use.saturating_sub(explained))
}

fn text(found: &Holders, pools: &[Pool]) -> String {
    let mut text = String::new();
    for holder in &found.processes {
        let _ =
            writeln!(text, "{} {}: HugetlbPages {}", holder.process, holder.command, size::print(holder.counted_bytes));
        for (held, count) in merged(&holder.held) {
            let _ = writeln!(text, "    {}", held_text(&held, count));
        }
        if !holder.is_readable {
            text.push_str("    its mappings cannot be read by this user\n");
        }
    }
    for file in &found.files {
        let holders: Vec<_> = found.of_file(file).map(|process| process.to_string()).collect();
        let holders = if holders.is_empty() { "no process that is seen".into() } else { holders.join(", ") };
        let path = file.path.display();
        let _ = writeln!(text, "{path}: {} on pages of {}, held by {holders}", size::print(file.bytes), file.page_size);
    }
    if text.is_empty() {
        text.push_str("no holder is seen\n");
    }
    text + &summary(found, pools)
}

fn summary(found: &Holders, pools: &[Pool]) -> String {
    let mut text = String::new();
    for pool in pools {
        let (in_use, unexplained) = unexplained(found, pool);
        let Pool { page_size, total, reserved, .. } = pool;
        let _ = write!(text, "{page_size}: {in_use} of {total} pages hold something, {reserved} more are promised");
        let _ = writeln!(text, "; the holders of {unexplained} were not found");
    }
    if found.unreadable > 0 {
        let _ = writeln!(
            text,
            "processes that could not be looked into: {} (those of others need root, some CAP_SYS_PTRACE)",
            found.unreadable
        );
    }
    text
}

/// Private mappings that differ in their addresses only are one line: a heap has many.
fn merged(all: &[Held]) -> Vec<(Held, usize)> {
    let mut merged: Vec<(Held, usize)> = Vec::new();
    for held in all {
        let is_alike = |known: &Held| {
            held.via == Via::PrivateMapping
                && (known.via, known.page_size, &known.name) == (held.via, held.page_size, &held.name)
        };
        match merged.iter_mut().find(|(known, _)| is_alike(known)) {
            None => merged.push((held.clone(), 1)),
            Some((known, count)) => {
                known.bytes += held.bytes;
                known.mapped_bytes += held.mapped_bytes;
                *count += 1;
            }
        }
    }
    merged
}

fn held_text(held: &Held, count: usize) -> String {
    let name = if held.name.is_empty() { "without a name" } else { &held.name };
    let (bytes, mapped) = (size::print(held.bytes), size::print(held.mapped_bytes));
    let how = match (held.via, count) {
        (Via::Descriptor, _) => "open and not mapped".into(),
        (via, 1) => format!("{}, {mapped} mapped", way(via)),
        (via, _) => format!("{}, {mapped} in {count} mappings", way(via)),
    };
    format!("{bytes} on pages of {}, {how}: {name}", held.page_size)
}

fn way(via: Via) -> &'static str {
    match via {
        Via::SharedMapping => "shared",
        Via::PrivateMapping => "private",
        _ => "descriptor",
    }
}

fn holder_json(holder: &Holder) -> Json {
    Json::Object(vec![
        ("process", holder.process.into()),
        ("command", (&holder.command).into()),
        ("counted_bytes", holder.counted_bytes.into()),
        ("is_readable", holder.is_readable.into()),
        ("held", Json::list(holder.held.iter().map(held_json))),
    ])
}

fn held_json(held: &Held) -> Json {
    Json::Object(vec![
        ("name", (&held.name).into()),
        ("page_bytes", held.page_size.bytes().into()),
        ("via", way(held.via).to_owned().into()),
        ("mapped_bytes", held.mapped_bytes.into()),
        ("bytes", held.bytes.into()),
        ("inode", held.inode.into()),
    ])
}

fn file_json(found: &Holders, file: &HeldFile) -> Json {
    Json::Object(vec![
        ("path", file.path.display().to_string().into()),
        ("page_bytes", file.page_size.bytes().into()),
        ("bytes", file.bytes.into()),
        ("inode", file.inode.into()),
        ("processes", Json::list(found.of_file(file).map(Json::from))),
    ])
}

fn pool_json(found: &Holders, pool: &Pool) -> Json {
    let (in_use, unexplained) = unexplained(found, pool);
    Json::Object(vec![
        ("page_bytes", pool.page_size.bytes().into()),
        ("in_use_pages", in_use.into()),
        ("promised_pages", pool.reserved.into()),
        ("unexplained_pages", unexplained.into()),
    ])
}
