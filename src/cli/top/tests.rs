//! The page as it is drawn, and what keys do.

use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::layout::Rect;
use serde_json::{Value, json};

use super::model::{DaemonConnectionState, Model, Overlay, Pane};
use super::team::{TeamSnapshot, items, without_copies};
use super::update::{ScreenEffect, ScreenInput, update};
use super::view::draw;
use crate::cli::output::Screen;

fn page(model: &Model, width: u16, height: u16) -> String {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).expect("a terminal");
    terminal.draw(|frame| draw(model, frame)).expect("draws");
    let text = terminal.backend().to_string();
    // The backend puts each row in quotation marks, so that trailing spaces are visible.
    text.lines().map(|line| line.trim_matches('"').trim_end().to_owned() + "\n").collect()
}

fn empty() -> Model {
    Model { page: Rect::new(0, 0, 100, 30), ..Model::new(Screen::for_tests(Some(100))) }
}

fn peer(id: &str, name: &str, status: &str) -> Value {
    json!({
        "peer_id": id, "display_name": name, "backend": "claude", "circle": "default", "role": "agent",
        "status": status, "session_id": format!("s-{id}"), "path": "/src/api",
        "last_seen": "2026-03-31T11:57:00.000Z", "evidence": "hook",
        "since": "2026-03-31T11:57:00.000Z", "registered_at": "2026-03-31T11:00:00.000Z",
    })
}

fn message(id: &str, kind: &str, from: (&str, &str), to: (&str, &str), text: &str) -> Value {
    json!({
        "id": id, "type": kind, "from_peer": from.0, "from_name": from.1, "to_peer": to.0, "to_name": to.1,
        "text": text, "state": "queued", "timestamp": "2026-03-31T11:50:00.000Z", "answered": false,
        "open": kind == "query",
    })
}

const ANN: (&str, &str) = ("ann", "claude@api");
const BOB: (&str, &str) = ("bob", "codex@web");
const OPERATOR: (&str, &str) = ("operator", "operator");

fn team() -> TeamSnapshot {
    let peers = json!({ "peers": [
        peer("ann", "claude@api", "busy"), peer("bob", "codex@web", "idle"),
        peer("eve", "x\u{1b}[31m\u{202e}\nerror: all is lost", "offline"),
        { "peer_id": "of a later version" },
    ] });
    let attempts = json!({ "ghap": [{
        "id": "ghap_1", "session_id": "s-ann", "goal": "A green build", "hypothesis": "The cache is stale",
        "action": "Empty it",
    }] });
    let asks = message("m-2", "query", ANN, BOB, "does the build\nwork for you?");
    let for_me = message("m-1", "query", BOB, OPERATOR, "may I delete the old branch?");
    let told = message("m-3", "notification", OPERATOR, ANN, "main is frozen until noon");
    let tasks = json!({ "tasks": [{
        "task_id": "task_1", "status": "active", "title": "cargo test", "agent": "codex",
        "created_at": "2026-03-31T11:59:00.000Z",
    }] });
    TeamSnapshot {
        peers: items(&peers, "peers"),
        attempts: items(&attempts, "ghap"),
        requests: Vec::new(),
        questions: items(&json!({ "messages": [asks, for_me] }), "messages"),
        tasks: items(&tasks, "tasks"),
        messages: items(&json!({ "messages": [told, asks, for_me] }), "messages"),
    }
}

fn show(model: &mut Model, team: TeamSnapshot) {
    update(model, ScreenInput::Fetched(Box::new(team)));
}

fn full() -> Model {
    let mut model = empty();
    show(&mut model, team());
    model
}

/// Presses keys, each of which is a character. Returns the effect of the last.
fn press(model: &mut Model, keys: &str) -> Option<ScreenEffect> {
    let key = |c| match c {
        '⇥' => KeyCode::Tab,
        '⇤' => KeyCode::BackTab,
        '↑' => KeyCode::Up,
        '↓' => KeyCode::Down,
        '⏎' => KeyCode::Enter,
        '⎋' => KeyCode::Esc,
        '⌫' => KeyCode::Backspace,
        c => KeyCode::Char(c),
    };
    let event = |c| match c {
        '^' => KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL),
        c => KeyEvent::from(key(c)),
    };
    keys.chars().map(|c| update(model, ScreenInput::Key(event(c)))).last().flatten()
}

#[test]
fn the_team_at_100_by_30() {
    insta::assert_snapshot!(page(&full(), 100, 30));
}

#[test]
fn the_team_at_60_by_20() {
    insta::assert_snapshot!(page(&full(), 60, 20));
}

#[test]
fn a_team_on_several_machines_says_who_is_where() {
    let mut peers = [peer("ann", "claude@api", "busy"), peer("bob", "codex@web", "idle")];
    peers[0]["machine"] = json!("laptop");
    peers[1]["machine"] = json!("box\u{1b}[31m");
    let team = TeamSnapshot { peers: items(&json!({ "peers": peers }), "peers"), ..team() };
    let mut model = empty();
    show(&mut model, team);
    let shown = page(&model, 100, 30);
    let ann = shown.lines().find(|line| line.contains("claude@api")).expect("a row");
    assert!(ann.ends_with("laptop"), "{shown}");
    assert!(shown.contains("box") && !shown.contains('\u{1b}'), "{shown}");
    assert!(!page(&full(), 100, 30).contains("laptop"));
    press(&mut model, "⏎");
    let looked_at = page(&model, 100, 30);
    assert!(looked_at.contains("machine   laptop"), "{looked_at}");
}

#[test]
fn nobody_is_here() {
    let mut model = empty();
    update(&mut model, ScreenInput::Fetched(Box::default()));
    insta::assert_snapshot!(page(&model, 100, 30));
}

#[test]
fn no_daemon_answers() {
    let mut model = empty();
    let problem = "no daemon is running at the socket; start one with `svc start`";
    update(&mut model, ScreenInput::Away(problem.to_owned()));
    insta::assert_snapshot!(page(&model, 60, 20));
}

#[test]
fn a_peer_is_looked_at() {
    let mut model = full();
    press(&mut model, "⏎");
    insta::assert_snapshot!(page(&model, 100, 30));
}

#[test]
fn the_last_lines_of_what_is_looked_at_are_shown_and_go_on() {
    let mut model = full();
    let effect = press(&mut model, "⏎");
    let Some(ScreenEffect::FetchLastLines { id, is_task: false }) = effect else {
        panic!("{effect:?}")
    };
    let lines = vec!["assistant: the tests pass".to_owned()];
    update(&mut model, ScreenInput::LastLines("another".to_owned(), lines.clone()));
    assert!(!page(&model, 100, 30).contains("the tests pass"), "of another");
    update(&mut model, ScreenInput::LastLines(id.clone(), lines));
    let shown = page(&model, 100, 30);
    assert!(shown.contains("said last") && shown.contains("assistant: the tests pass"), "{shown}");
    let team = Box::new(model.team.clone());
    let again = update(&mut model, ScreenInput::Fetched(team.clone()));
    assert_eq!(again, Some(ScreenEffect::FetchLastLines { id, is_task: false }));
    press(&mut model, "⎋");
    assert_eq!(update(&mut model, ScreenInput::Fetched(team)), None, "nothing is looked at");
}

#[test]
fn a_question_is_answered() {
    let mut model = full();
    press(&mut model, "⇥↓a");
    assert_eq!(press(&mut model, "yes, delete it: q is no command here"), None);
    insta::assert_snapshot!(page(&model, 60, 20));
    let Some(ScreenEffect::Send(draft)) = press(&mut model, "⏎") else { panic!("sends") };
    assert_eq!((draft.to.as_str(), draft.answers.as_deref()), ("bob", Some("m-1")));
    assert_eq!(draft.text, "yes, delete it: q is no command here");
    assert_eq!(model.overlay, None);
    let when = "it reads the message with its next prompt".to_owned();
    update(&mut model, ScreenInput::Sent(Ok(when)));
    let shown = page(&model, 60, 20);
    assert!(shown.ends_with(" sent: it reads the message with its next prompt\n"), "{shown}");
    update(&mut model, ScreenInput::Sent(Err("the inbox is full".to_owned())));
    assert!(page(&model, 60, 20).ends_with(" not sent: the inbox is full\n"));
}

#[test]
fn a_message_is_written_corrected_and_given_up() {
    let mut model = full();
    assert_eq!(press(&mut model, "↓mhellp⌫o"), None);
    let Some(Overlay::Write(draft)) = &model.overlay else { panic!("writes") };
    assert_eq!((draft.to.as_str(), draft.text.as_str(), &draft.answers), ("bob", "hello", &None));
    assert_eq!(press(&mut model, "⎋"), None);
    assert_eq!(model.overlay, None);
    press(&mut model, "m⏎");
    assert!(matches!(model.overlay, Some(Overlay::Write(_))), "nothing is sent without a text");
}

#[test]
fn impossible_key_shows_a_notice_with_the_reason() {
    let mut model = full();
    press(&mut model, "a");
    assert!(model.notice.as_deref().is_some_and(|notice| notice.contains("question")));
    press(&mut model, "⇤m");
    assert_eq!(model.notice.as_deref(), Some("that is from you"));
    let mut alone = empty();
    assert_eq!(press(&mut alone, "m"), None);
    assert!(alone.notice.is_some() && alone.overlay.is_none());
    press(&mut alone, "⏎↓↑");
    assert_eq!(alone.overlay, None, "there is nothing to look at");
}

#[test]
fn the_choice_stays_with_its_row_when_lists_move() {
    let mut model = full();
    press(&mut model, "↓");
    assert_eq!(model.chosen_row().expect("a row").id(), "bob");
    let mut moved = team();
    moved.peers.reverse();
    update(&mut model, ScreenInput::Fetched(Box::new(moved.clone())));
    assert_eq!(model.chosen_row().expect("a row").id(), "bob");
    moved.peers.retain(|peer| peer.peer_id.as_str() != "bob");
    show(&mut model, moved);
    assert_eq!(model.chosen_row().expect("a row").id(), "ann", "the first, where it is gone");
    press(&mut model, "o");
    assert_eq!(model.chosen_row().expect("a row").id(), "eve", "of those that are away, too");
    for _ in 0..9 {
        press(&mut model, "↓");
    }
    assert_eq!(model.chosen_row().expect("a row").id(), "ann", "and the end is the end");
}

#[test]
fn team_view_ends_on_q_and_interrupt_but_not_on_escape() {
    let effect = press(&mut full(), "⎋");
    assert_eq!(effect, None, "it goes back, and there is nothing behind");
    for key in ["q", "^"] {
        assert_eq!(press(&mut full(), key), Some(ScreenEffect::Quit), "{key:?}");
    }
    let mut model = full();
    press(&mut model, "⏎");
    assert_eq!(press(&mut model, "q"), None, "back to the lists first");
    press(&mut model, "m");
    let effect = press(&mut model, "^");
    assert_eq!(effect, Some(ScreenEffect::Quit), "also while one writes");
}

#[test]
fn the_living_are_listed_and_the_away_counted() {
    let (mut model, mut team) = (full(), team());
    let page_of = json!({ "peers": [peer("operator", "operator", "online")] });
    team.peers.splice(0..0, items(&page_of, "peers"));
    show(&mut model, team);
    let shown = page(&model, 100, 30);
    assert!(shown.contains("2 here, 1 away") && !shown.contains("error: all is lost"), "{shown}");
    assert!(!shown.contains("operator"), "who looks is not in the list: {shown}");
    assert_eq!(model.chosen_row().expect("a row").id(), "ann", "an agent comes first");
    press(&mut model, "o");
    assert!(page(&model, 100, 30).contains("error: all is lost"));
    press(&mut model, "o");
    assert!(!page(&model, 100, 30).contains("error: all is lost"));
}

#[test]
fn who_waits_at_its_terminal_comes_first_and_says_for_what() {
    let (mut model, mut team) = (full(), team());
    let mut waits = peer("zoe", "codex@zoo", "waiting");
    waits["waiting_for"] = json!({
        "kind": "permission", "since": "2026-03-31T11:59:00.000Z", "title": "rm -r \u{1b}[31mbuild", "tool": "Bash",
    });
    team.peers.extend(items(&json!({ "peers": [waits] }), "peers"));
    show(&mut model, team);
    assert_eq!(model.rows(Pane::People)[0].id(), "zoe");
    let shown = page(&model, 120, 30);
    assert!(shown.contains("codex@zoo waits at its terminal"), "{shown}");
    assert_eq!(shown.matches("needs permission: rm -r ").count(), 2, "{shown}");
    assert!(!shown.contains('\u{1b}'), "{shown}");
}

#[test]
fn a_question_to_one_who_is_away_is_marked_and_ours_is_in_the_second_person() {
    let (mut model, mut team) = (full(), team());
    let eve = ("eve", "gemini@old");
    let ours = message("m-8", "query", OPERATOR, eve, "are you there?");
    let theirs = message("m-9", "query", ANN, eve, "and for me?");
    team.questions = items(&json!({ "messages": [ours, theirs] }), "messages");
    show(&mut model, team);
    press(&mut model, "o");
    let shown = page(&model, 100, 30);
    assert!(shown.contains("you wait for gemini@old (offline)"), "{shown}");
    assert!(shown.contains("claude@api waits for gemini@old (offline)"), "{shown}");
    let wide = page(&model, 120, 30);
    let person = wide.lines().find(|line| line.starts_with(" claude@api")).expect("a row");
    assert!(person.contains("waits for gemini@old (offline)"), "{shown}");
    // The row after the task.
    press(&mut model, "⇥↓⏎");
    assert!(page(&model, 100, 30).contains("cannot be withdrawn"), "{}", page(&model, 100, 30));
}

#[test]
fn only_who_was_asked_may_answer() {
    let mut model = full();
    press(&mut model, "⇥a");
    assert_eq!(model.overlay, None);
    let notice = model.notice.as_deref();
    assert_eq!(notice, Some("only codex@web may answer that; m writes to claude@api"));
}

#[test]
fn truncated_names_and_texts_end_with_an_ellipsis() {
    let (mut model, mut team) = (full(), team());
    let long = "claude-code@a-project-with-a-very-long-name-that-nobody-could-type";
    let named = json!({ "peers": [peer("ann", long, "busy")] });
    team.peers = items(&named, "peers");
    let told = message("m-3", "notification", ANN, BOB, &"word ".repeat(60));
    team.messages = items(&json!({ "messages": [told] }), "messages");
    show(&mut model, team);
    for width in [60, 100] {
        let shown = page(&model, width, 30);
        let line = |words: &str| shown.lines().find(|line| line.contains(words)).expect("a line");
        assert!(line("claude-code@a-pro").contains("…"), "{shown}");
        assert!(line("word word").ends_with('…'), "{shown}");
        assert!(!shown.contains(long), "{shown}");
    }
}

#[test]
fn a_daemon_that_is_away_leaves_what_was() {
    let mut model = full();
    update(&mut model, ScreenInput::Away("the connection failed".to_owned()));
    let shown = page(&model, 100, 30);
    assert!(shown.contains("the connection failed") && shown.contains("claude@api"), "{shown}");
    show(&mut model, team());
    assert_eq!(model.connection, DaemonConnectionState::Live);
}

#[test]
fn nothing_of_others_reaches_the_terminal_and_every_size_is_drawn() {
    let mut model = full();
    model.shows_away = true;
    for (width, height) in [(1, 1), (3, 2), (20, 5), (59, 7), (90, 12), (200, 60)] {
        for pane in Pane::ALL {
            model.pane = pane;
            for overlay in [None, Some(Overlay::Detail { scroll: 3 })] {
                model.overlay = overlay;
                let shown = page(&model, width, height);
                assert!(!shown.contains(['\u{1b}', '\u{202e}']), "{shown}");
            }
        }
    }
}

#[test]
fn a_list_without_the_focus_shows_the_newest_and_a_scrolled_one_says_how_many_are_above() {
    let mut model = full();
    press(&mut model, "⇥⇥⏎⎋⇥");
    let notes = (1..=12).rev().map(|n| {
        message(&format!("n-{n}"), "notification", ANN, BOB, &format!("note number {n}."))
    });
    let old = message("m-3", "notification", OPERATOR, ANN, "main is frozen until noon");
    let mut team = team();
    let all: Vec<Value> = notes.chain([old]).collect();
    team.messages = items(&json!({ "messages": all }), "messages");
    show(&mut model, team);
    assert_eq!(model.pane, Pane::People);
    let shown = page(&model, 100, 30);
    assert!(shown.contains("note number 12.") && !shown.contains("frozen"), "{shown}");
    press(&mut model, "⇤");
    let shown = page(&model, 100, 30);
    assert!(shown.contains("frozen") && shown.contains("newer above"), "{shown}");
    let rows = shown.lines().filter(|line| line.contains("note number")).count() + 1;
    assert!(shown.contains(&format!("last said: {} newer above", 13 - rows)), "{shown}");
}

#[test]
fn name_of_the_asked_peer_uses_the_width_of_an_empty_column() {
    let (mut model, mut team) = (full(), team());
    team.attempts = Vec::new();
    let asked = ("bob", "claude-code@web-and-more-of-it");
    let named = json!({ "peers": [peer("ann", "claude-code@shop-front", "busy"), peer("bob", asked.1, "idle")] });
    team.peers = items(&named, "peers");
    let asks = message("m-2", "query", ANN, asked, "does it work?");
    team.questions = items(&json!({ "messages": [asks] }), "messages");
    show(&mut model, team);
    let shown = page(&model, 100, 30);
    let line = shown.lines().find(|line| line.contains("claude-code@shop-front")).expect("a line");
    assert!(line.contains("waits for claude-code@web-and-more-of-it"), "{shown}");
}

#[test]
fn a_notice_gives_way_to_the_help_and_one_that_something_is_lost_does_not() {
    let mut model = full();
    press(&mut model, "a");
    let now = model.screen.now;
    for _ in 0..2 {
        update(&mut model, ScreenInput::Tick(now));
        assert!(model.notice.is_some());
    }
    update(&mut model, ScreenInput::Tick(now));
    assert_eq!(model.notice, None);
    assert!(page(&model, 100, 30).contains("tab list"));
    update(&mut model, ScreenInput::Sent(Err("the inbox is full".to_owned())));
    for _ in 0..9 {
        update(&mut model, ScreenInput::Tick(now));
    }
    assert!(page(&model, 100, 30).contains("not sent: the inbox is full"));
}

#[test]
fn ones_own_question_is_answered_by_the_other() {
    let (mut model, mut team) = (full(), team());
    let ours = message("m-8", "query", OPERATOR, BOB, "are you there?");
    team.questions = items(&json!({ "messages": [ours] }), "messages");
    show(&mut model, team);
    press(&mut model, "⇥a");
    assert_eq!(model.notice.as_deref(), Some("that is your own question: codex@web answers it"));
}

fn asking() -> Model {
    let mut model = empty();
    let mut team = team();
    let request = json!({
        "request_id": "req_1", "agent_id": "ag_1", "session_key": "agent:codex:main", "peer_id": "bob",
        "kind": "permission", "title": "Write: /etc/x\u{1b}[2J", "opened_at": "2026-03-31T11:59:30.000Z",
        "options": [
            { "option_id": "allow", "name": "Allow once", "kind": "allow_once" },
            { "option_id": "deny", "name": "Deny", "kind": "deny" },
        ],
    });
    team.requests = items(&json!({ "requests": [request] }), "requests");
    show(&mut model, team);
    model
}

#[test]
fn a_permanent_option_needs_a_confirmation() {
    let mut model = asking();
    let always = json!({ "option_id": "ever", "name": "Always allow", "kind": "allow_always" });
    let option = serde_json::from_value(always).expect("an option");
    model.team.requests[0].options.push(option);
    press(&mut model, "⇥a");
    assert_eq!(press(&mut model, "3"), None);
    let asked = "Always allow: this holds from now on; 3 again answers";
    assert_eq!(model.notice.as_deref(), Some(asked));
    // Leaving the choice discards the first press.
    assert_eq!(press(&mut model, "9⎋a3"), None);
    assert_eq!(model.notice.as_deref(), Some(asked));
    let Some(ScreenEffect::Answer { option_id, .. }) = press(&mut model, "3") else {
        panic!("it answers: {:?}", model.notice);
    };
    assert_eq!(option_id, "ever");
}

#[test]
fn a_request_stands_first_and_beside_who_asks() {
    insta::assert_snapshot!(page(&asking(), 100, 30));
    let narrow = page(&asking(), 60, 20);
    assert!(narrow.contains("codex@web → you?") && narrow.contains("Write: /etc/x"), "{narrow}");
}

#[test]
fn a_number_answers_a_request() {
    for keys in ["⇥a", "↓a"] {
        let mut model = asking();
        press(&mut model, keys);
        let shown = page(&model, 100, 30);
        assert!(shown.contains("1  Allow once") && shown.contains("2  Deny"), "{shown}");
        assert_eq!(press(&mut model, "3"), None);
        assert_eq!(model.notice.as_deref(), Some("a number from 1 to 2 answers"));
        let answer = press(&mut model, "2");
        let (request_id, option_id) = ("req_1".to_owned(), "deny".to_owned());
        let expected = ScreenEffect::Answer { request_id, option_id, confirm: false };
        assert_eq!((answer, &model.overlay), (Some(expected), &None));
    }
    let mut model = asking();
    press(&mut model, "⇥a⎋");
    assert_eq!(model.overlay, None);
    update(&mut model, ScreenInput::Answered(Err("already answered".to_owned())));
    assert!(page(&model, 100, 30).contains("not answered: already answered"));
}

#[test]
fn a_question_to_who_is_away_is_folded_and_comes_last() {
    let (mut model, mut team) = (full(), team());
    let dead = message("m-9", "query", ANN, ("eve", "codex@gone"), "are you alive?");
    let live = message("m-2", "query", ANN, BOB, "does it work?");
    team.questions = items(&json!({ "messages": [dead, live] }), "messages");
    show(&mut model, team);
    let shown = page(&model, 100, 30);
    assert!(shown.contains("waiting (2; 1 for who is away: o)"), "{shown}");
    assert!(!shown.contains("are you alive?") && shown.contains("does it work?"), "{shown}");
    press(&mut model, "o");
    let shown = page(&model, 100, 30);
    let at = |words: &str| shown.find(words).unwrap_or_else(|| panic!("{words}: {shown}"));
    assert!(at("does it work?") < at("are you alive?"), "{shown}");
    assert!(shown.contains("waiting (3)"), "{shown}");
}

#[test]
fn a_broadcast_is_one_row_and_a_spent_agent_none() {
    let (mut model, mut team) = (full(), team());
    let copies = (0..9).map(|n| message(&format!("b-{n}"), "broadcast", ANN, BOB, "all hands"));
    let twice =
        [1, 2].map(|n| message(&format!("n-{n}"), "notification", ANN, BOB, "the same words"));
    let all: Vec<Value> = copies.chain(twice).collect();
    team.messages = without_copies(items(&json!({ "messages": all }), "messages"));
    let peers = json!({ "peers": [peer("ann", "claude@api", "busy"), peer("t", "codex:task-1", "offline"), peer("u", "codex:task-2", "busy")] });
    team.peers = items(&peers, "peers");
    show(&mut model, team);
    press(&mut model, "o");
    let shown = page(&model, 100, 30);
    assert_eq!(shown.matches("all hands").count(), 1, "{shown}");
    assert!(shown.contains("claude@api → everybody"), "{shown}");
    assert_eq!(shown.matches("the same words").count(), 2, "{shown}");
    assert!(shown.contains("1 here  live") && !shown.contains("codex:task-"), "{shown}");
}

#[test]
fn a_prompt_shows_the_folder_and_the_whole_call() {
    let mut model = full();
    let mut team = model.team.clone();
    let command = format!("make all\n# \u{1b}[31m{}\nrm -r build", "long ".repeat(20));
    let request = json!({
        "request_id": "req_1", "session_key": "s-ann", "peer_id": "ann", "title": "make all",
        "kind": "permission", "opened_at": "2026-03-31T11:59:30.000Z",
        "cwd": "/src/api", "tool": { "name": "Bash", "input": { "command": command, "timeout": 5 } },
        "options": [
            { "option_id": "allow", "name": "Yes", "kind": "allow_once" },
            { "option_id": "deny", "name": "No", "kind": "deny" },
        ],
    });
    team.requests = items(&json!({ "requests": [request] }), "requests");
    show(&mut model, team);
    press(&mut model, "⇥a");
    let shown = page(&model, 100, 30);
    for words in ["folder    /src/api", "tool      Bash", "rm -r build", "timeout   5", "2  No"] {
        assert!(shown.contains(words), "{words}: {shown}");
    }
    assert!(!shown.contains('\u{1b}'), "{shown}");
    press(&mut model, "⎋⏎");
    assert!(page(&model, 100, 30).contains("rm -r build"));
}

#[test]
fn leave_is_given_only_for_what_was_shown_to_its_end() {
    let mut model = asking();
    let lines: Vec<String> = (1..=20).map(|number| format!("step {number}")).collect();
    let tool = json!({ "name": "Bash", "input": { "command": lines.join("\n") } });
    model.team.requests[0].tool = tool;
    model.page = Rect::new(0, 0, 60, 14);
    press(&mut model, "⇥a");
    let shown = page(&model, 60, 14);
    let is_cut = shown.contains("↓ 16 more") && !shown.contains("step 20");
    assert!(is_cut && shown.contains("2  Deny"), "{shown}");
    assert_eq!(press(&mut model, "1"), None);
    let words = "↓ or space shows the rest, and then Allow once can be answered";
    assert_eq!(model.notice.as_deref(), Some(words));
    // A denial needs no such reading.
    let denied = press(&mut model.clone(), "2");
    assert!(matches!(denied, Some(ScreenEffect::Answer { .. })), "{denied:?}");
    press(&mut model, "  ");
    assert_eq!(press(&mut model, "1"), None, "there is more");
    press(&mut model, " ↓↓ ");
    let shown = page(&model, 60, 14);
    assert!(shown.contains("step 20") && !shown.contains("more"), "{shown}");
    // Another size wraps the rows differently.
    let mut other = model.clone();
    update(&mut other, ScreenInput::Resized);
    assert_eq!(press(&mut other, "1"), None);
    // Rows that were shown count, also after scrolling back.
    let given = press(&mut model, "↑↑1");
    assert!(matches!(given, Some(ScreenEffect::Answer { .. })), "{given:?}");
}

#[test]
fn a_request_that_was_answered_elsewhere_has_no_options_any_more() {
    let mut model = asking();
    press(&mut model, "⇥a");
    let team = model.team.clone();
    update(&mut model, ScreenInput::Fetched(Box::new(team.clone())));
    assert!(matches!(model.overlay, Some(Overlay::Choose(_))), "it is open");
    let mut watched = team.clone();
    watched.requests[0].options.clear();
    for (team, words) in [
        (
            TeamSnapshot { requests: Vec::new(), ..team },
            "the request of codex@web was answered elsewhere",
        ),
        (watched, "the terminal of codex@web takes the answer"),
    ] {
        let mut model = model.clone();
        show(&mut model, team);
        assert_eq!((&model.overlay, model.notice.as_deref()), (&None, Some(words)));
        assert_eq!(press(&mut model, "1"), None);
    }
}

#[test]
fn a_limit_is_no_prompt_and_a_status_says_what_it_rests_on() {
    let mut model = full();
    let mut team = model.team.clone();
    let mut limited = peer("zoe", "codex@zoo", "waiting");
    limited["evidence"] = json!("registry");
    limited["waiting_for"] = json!({
        "kind": "limit", "since": "2026-03-31T11:59:00.000Z", "until": "2026-03-31T14:00:00.000Z",
    });
    team.peers = items(&json!({ "peers": [limited] }), "peers");
    show(&mut model, team);
    let shown = page(&model, 120, 30);
    assert!(shown.contains("codex@zoo waits") && !shown.contains("at its terminal"), "{shown}");
    press(&mut model, "⏎");
    let shown = page(&model, 120, 30);
    for words in
        ["waiting, by registry", "has reached its usage limit", "the limit ends at 2026-03-31T14"]
    {
        assert!(shown.contains(words), "{words}: {shown}");
    }
}

#[test]
fn a_limit_without_a_known_end_asks_nobody() {
    let mut model = full();
    let mut team = model.team.clone();
    let mut limited = peer("zoe", "codex@zoo", "waiting");
    limited["waiting_for"] = json!({ "kind": "limit", "since": "2026-03-31T11:59:00.000Z" });
    team.peers = items(&json!({ "peers": [limited] }), "peers");
    show(&mut model, team);
    let narrow = page(&model, 60, 30);
    assert!(narrow.contains("codex@zoo waits") && !narrow.contains("codex@zoo →"), "{narrow}");
    press(&mut model, "⏎");
    let shown = page(&model, 120, 30);
    assert!(shown.contains("its vendor does not say when the limit ends"), "{shown}");
}
