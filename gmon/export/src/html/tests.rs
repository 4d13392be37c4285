use base64::prelude::{BASE64_STANDARD, Engine};
use sha2::{Digest, Sha256};

use super::*;
use crate::html::page::{PAGE, STYLE};
use crate::model::{Function, Time};
use gmon_run::Module;

/// What is between the two texts, which occur once.
fn between<'t>(text: &'t str, before: &str, after: &str) -> &'t str {
    let parts: Vec<_> = text.split(before).collect();
    assert_eq!(parts.len(), 2, "{before}");
    parts[1].split_once(after).expect("an end").0
}

fn page(run: &Run) -> String {
    let mut out = Vec::new();
    write(run, &mut Extras::default(), &mut out).expect("memory can be written to");
    String::from_utf8(out).expect("UTF-8")
}

fn data(page: &str) -> serde_json::Value {
    let packed = between(page, "id=\"data\">", "</script>");
    let packed = BASE64_STANDARD.decode(packed).expect("Base64");
    serde_json::from_reader(flate2::read::GzDecoder::new(&packed[..])).expect("JSON")
}

fn hostile() -> Run {
    let name = "</script><img src=x onerror=alert(1)>\u{202e}\u{7}\"'";
    Run {
        program: format!("</title>{name}"),
        time: Time::Measured { error_ns: 1.5 },
        modules: vec![Module { path: format!("/tmp/{name}"), ..Module::default() }],
        functions: vec![
            Function {
                name: name.into(),
                demangled: name.into(),
                module: Some(0),
                calls: u64::MAX,
                ..Function::default()
            },
            Function { name: "f".into(), demangled: "f".into(), ..Function::default() },
        ],
        ..Run::default()
    }
}

#[test]
fn texts_of_the_profile_are_in_the_data_only() {
    let run = hostile();
    let page = page(&run);
    assert!(!page.contains("<img"), "a name is in the page");
    assert_eq!(
        between(&page, "<title>", "</title>"),
        "&lt;/title&gt;&lt;/script&gt;&lt;img src=x onerror=alert(1)&gt;\\u{202e}\\u{7}&quot;'"
    );
}

#[test]
fn the_policy_allows_the_page_s_own_script_and_style_only() {
    let page = page(&Run::default());
    let script = between(&page, "<script>", "</script>");
    let style = between(&page, "<style>", "</style>");
    let policy = between(&page, "http-equiv=\"Content-Security-Policy\" content=\"", "\"");
    for (what, text) in [("script-src", script), ("style-src", style)] {
        let hash = BASE64_STANDARD.encode(Sha256::digest(text));
        assert!(policy.contains(&format!("{what} 'sha256-{hash}';")), "{policy}");
    }
    assert!(policy.starts_with("default-src 'none';") && !policy.contains("unsafe"), "{policy}");
    assert!(!page.contains("{{") && !page.contains("}}<"), "a place is not filled");
}

#[test]
fn the_page_names_no_address() {
    for text in SCRIPT.iter().chain([&PAGE, &STYLE]) {
        for address in ["http:", "https:", "//www", "@import", "fetch(", "XMLHttpRequest", "WebSocket"] {
            assert!(!text.contains(address), "{address}");
        }
        // What would make elements of a text.
        for danger in
            ["innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "new Function("]
        {
            assert!(!text.contains(danger), "{danger}");
        }
    }
}

#[test]
fn numbers_and_names_arrive() {
    let run = hostile();
    let data = data(&page(&run));
    assert_eq!(data["program"], run.program);
    assert_eq!(data["functions"]["name"][0], run.functions[0].name);
    assert_eq!(data["functions"]["calls"][0], u64::MAX);
    // A function without a module has one of its own.
    assert_eq!(
        (&data["functions"]["module"][1], &data["modules"][1]["name"]),
        (&1.into(), &"[unknown]".into())
    );
    assert!(data["nodes"].is_null() && data["sources"].is_null() && data["code"].is_null());
}
