//! `WebFetch`: each address, also that of a redirect, is resolved once and checked, and the
//! connection uses the checked addresses. A page becomes Markdown in a process with bounds.

use std::{
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    process::{ExitCode, Stdio},
    sync::LazyLock,
    time::Duration,
};

use encoding_rs::{Encoding, UTF_8};
use htmd::HtmlToMarkdown;
use regex_automata::{meta::Regex, util::syntax};
use reqwest::{Client, Url, header, redirect};
#[cfg(target_os = "linux")]
use rustix::process::{DumpableBehavior, set_dumpable_behavior};
use rustix::process::{Resource, Rlimit, setrlimit};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use svc_core::tools::{ErrorType, ToolError};
use svc_model::quote;
use svc_wire::choose_tls;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::{
    field_error,
    http_clients::{problem_of, read_body},
};

const MAX_REDIRECTS: usize = 10;

/// What to fetch.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct FetchArguments {
    /// An address of http or https.
    #[schemars(length(min = 1, max = 8192))]
    url: String,
    #[serde(default = "half_a_minute")]
    #[schemars(range(min = 1, max = 120_000))]
    timeout_ms: u64,
    /// Most bytes of the page that are read.
    #[serde(default = "one_mebibyte")]
    #[schemars(range(min = 1, max = 10_485_760))]
    max_bytes: usize,
}

fn half_a_minute() -> u64 {
    30_000
}

fn one_mebibyte() -> usize {
    1024 * 1024
}

/// A page.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct FetchResult {
    /// Where it was found, after redirects.
    url: String,
    /// The HTTP status.
    status: u16,
    /// Text as it is; HTML as markdown.
    content: String,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    truncated: bool,
}

fn unavailable(text: impl Into<String>) -> ToolError {
    ToolError::new(ErrorType::Unavailable, text)
}

pub(super) async fn fetch(
    input: &FetchArguments,
    allow_private: bool,
) -> Result<FetchResult, ToolError> {
    let timeout = Duration::from_millis(input.timeout_ms);
    let fetched = tokio::time::timeout(timeout, follow(input, allow_private)).await;
    let late = || unavailable(format!("url: no answer within {} ms", input.timeout_ms));
    fetched.unwrap_or_else(|_| Err(late()))
}

async fn follow(input: &FetchArguments, allow_private: bool) -> Result<FetchResult, ToolError> {
    let mut url = checked(&input.url)?;
    for _ in 0..=MAX_REDIRECTS {
        let client = client_for(&url, allow_private).await?;
        let reply = client.get(url.clone()).send().await.map_err(|error| {
            unavailable(format!("url: {url} cannot be fetched: {}", problem_of(error)))
        })?;
        let target =
            reply.headers().get(header::LOCATION).filter(|_| reply.status().is_redirection());
        let Some(target) = target else { return read(url, reply, input.max_bytes).await };
        let target = target.to_str().ok().and_then(|target| url.join(target).ok());
        let target =
            target.ok_or_else(|| unavailable("url: it redirects to what is no address"))?;
        url = checked(target.as_str())?;
    }
    Err(unavailable(format!("url: more than {MAX_REDIRECTS} redirects")))
}

fn checked(text: &str) -> Result<Url, ToolError> {
    let wrong = |problem: &str| ToolError::invalid("url", format!("url: {problem}"));
    let url = Url::parse(text).map_err(|error| wrong(&error.to_string()))?;
    if !matches!(url.scheme(), "http" | "https") {
        return Err(wrong("must be of http or https").allowed(vec!["http", "https"]));
    }
    if !url.username().is_empty() || url.password().is_some() {
        return Err(wrong("must not hold a password"));
    }
    Ok(url)
}

/// A client that connects to the checked addresses only.
async fn client_for(url: &Url, allow_private: bool) -> Result<Client, ToolError> {
    let host = url.host_str().unwrap_or_default();
    let port = url.port_or_known_default().unwrap_or(80);
    let plain = host.trim_start_matches('[').trim_end_matches(']');
    let addresses: Vec<SocketAddr> = match plain.parse::<IpAddr>() {
        Ok(address) => vec![SocketAddr::new(address, port)],
        Err(_) => tokio::net::lookup_host((plain, port))
            .await
            .map_err(|error| unavailable(format!("url: {host} cannot be found: {error}")))?
            .collect(),
    };
    if addresses.is_empty() {
        return Err(unavailable(format!("url: {host} has no address")));
    }
    if !allow_private && addresses.iter().any(|address| is_private(address.ip())) {
        let text = format!(
            "url: {host} is at a private address; the person may allow those with allow_private in [sources.core]"
        );
        return Err(field_error(ErrorType::Forbidden, "url", text));
    }
    choose_tls();
    let client = Client::builder()
        .no_proxy()
        .redirect(redirect::Policy::none())
        .resolve_to_addrs(plain, &addresses)
        .user_agent(concat!("svc/", env!("CARGO_PKG_VERSION")))
        .build();
    client.map_err(|error| unavailable(format!("url: {}", problem_of(error))))
}

async fn read(
    url: Url,
    mut reply: reqwest::Response,
    max_bytes: usize,
) -> Result<FetchResult, ToolError> {
    let status = reply.status().as_u16();
    let kind = reply.headers().get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
    let kind = kind.unwrap_or_default();
    let (kind, parameters) = kind.split_once(';').unwrap_or((kind, ""));
    let (kind, charset) = (kind.trim().to_ascii_lowercase(), charset_of(parameters));
    let failed = |error| unavailable(format!("url: it broke off: {}", problem_of(error)));
    let (body, truncated) = read_body(&mut reply, max_bytes).await.map_err(failed)?;
    let is_html = matches!(kind.as_str(), "text/html" | "application/xhtml+xml")
        || (kind.is_empty() && body.trim_ascii_start().starts_with(b"<!"));
    let text = decoded(&body, charset, is_html);
    if !is_html && text.chars().take(8192).any(|character| character == '\0') {
        return Err(unavailable(format!("url: it is {kind}, and no text")));
    }
    let text = if is_html { markdown_of(text).await } else { text };
    // The text is untrusted and is shown to a model.
    let content = quote::plain(&text).into_owned();
    Ok(FetchResult { url: url.into(), status, content, truncated })
}

/// The encoding that the parameters of a `Content-Type` name.
fn charset_of(parameters: &str) -> Option<&'static Encoding> {
    let mut named = parameters.split(';').filter_map(|parameter| parameter.split_once('='));
    let (_, label) = named.find(|(name, _)| name.trim().eq_ignore_ascii_case("charset"))?;
    let label = label.trim().trim_matches(['"', '\'']);
    Encoding::for_label_no_replacement(label.as_bytes())
}

/// Bytes at the beginning of a page in which its encoding may be named.
const CHARSET_WITHIN: usize = 1024;

/// The text of a body: by its byte order mark, else by the charset of its `Content-Type`, else by
/// what a page says of itself, else as UTF-8.
fn decoded(body: &[u8], charset: Option<&'static Encoding>, is_html: bool) -> String {
    static NAMED: LazyLock<Regex> = LazyLock::new(|| {
        let pattern = r#"(?i-u)<(?:meta|\?xml)\s[^>]*?(?:charset|encoding)\s*=\s*["']?([-\w.:]+)"#;
        let bytes = syntax::Config::new().utf8(false);
        Regex::builder().syntax(bytes).build(pattern).expect("is well formed")
    });
    let named = || {
        let start = &body[..body.len().min(CHARSET_WITHIN)];
        let mut found = NAMED.create_captures();
        NAMED.captures(start, &mut found);
        let label = &start[found.get_group(1).filter(|_| is_html)?];
        // What says so in bytes of ASCII is no UTF-16.
        Encoding::for_label_no_replacement(label).map(Encoding::output_encoding)
    };
    let encoding = charset.or_else(named).unwrap_or(UTF_8);
    encoding.decode(body).0.into_owned()
}

/// Whether an address is not globally reachable.
fn is_private(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => is_private_v4(address),
        IpAddr::V6(address) => is_private_v6(address),
    }
}

fn is_private_v4(address: Ipv4Addr) -> bool {
    let [a, b, c, _] = address.octets();
    address.is_private()
        || address.is_loopback()
        || address.is_link_local()
        || address.is_documentation()
        || address.is_multicast()
        || a == 0
        || a >= 240
        || (a == 100 && (64..128).contains(&b))
        || (a == 192 && b == 0 && c == 0)
        || (a == 192 && b == 88 && c == 99)
        || (a == 198 && matches!(b, 18 | 19))
}

fn is_private_v6(address: Ipv6Addr) -> bool {
    if let Some(mapped) = address.to_ipv4_mapped() {
        return is_private_v4(mapped);
    }
    let parts = address.segments();
    let embedded = |high: u16, low: u16| {
        let ([a, b], [c, d]) = (high.to_be_bytes(), low.to_be_bytes());
        is_private_v4(Ipv4Addr::new(a, b, c, d))
    };
    match parts {
        // IPv4 addresses embedded by a NAT64 gateway or by 6to4.
        [0x64, 0xff9b, 0, 0, 0, 0, high, low] | [0x2002, high, low, ..] => embedded(high, low),
        // Everything outside 2000::/3, and the reserved ranges in it: 2001::/23 and documentation.
        [first, second, ..] => {
            first & 0xe000 != 0x2000
                || (first == 0x2001 && (second < 0x200 || second == 0xdb8))
                || first == 0x3fff
        }
    }
}

/// The first argument of this program when it converts a page.
pub const CONVERTER: &str = "convert-page";
/// CPU time of a conversion, in seconds.
const SECONDS: u64 = 10;
/// Most memory of a conversion, in bytes.
const MEMORY: u64 = 1024 * 1024 * 1024;

/// Most Markdown of a page, in bytes: each line of a nested list is indented by its depth.
const MARKDOWN: u64 = 32 * 1024 * 1024;

/// Elements without text for a reader.
const LEFT_OUT: [&str; 7] = ["script", "style", "noscript", "template", "svg", "iframe", "head"];

/// Converts a page in a process of its own with bounds of time, memory and stack: parsers of HTML
/// take quadratic time for some pages, the converter recurses for each level of a page, and the
/// author of a page may choose such a one. The fallback is the text between the tags.
pub(crate) async fn markdown_of(html: String) -> String {
    let converted = tokio::time::timeout(Duration::from_secs(SECONDS * 2), in_process(&html)).await;
    match converted {
        Ok(Ok(text)) => text,
        Ok(Err(error)) => {
            tracing::debug!(%error, "a page is not converted");
            strip_tags(&html)
        }
        Err(_) => strip_tags(&html),
    }
}

async fn in_process(html: &str) -> io::Result<String> {
    let mut converter = tokio::process::Command::new(std::env::current_exe()?)
        .arg(CONVERTER)
        .env_clear()
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .spawn()?;
    let (Some(mut input), Some(output)) = (converter.stdin.take(), converter.stdout.take()) else {
        return Err(io::ErrorKind::BrokenPipe.into());
    };
    let mut output = output.take(MARKDOWN);
    let mut text = String::new();
    let write = async {
        let written = input.write_all(html.as_bytes()).await;
        drop(input);
        written
    };
    // The converter may end before it has read all of its input.
    let (_, read) = tokio::join!(write, output.read_to_string(&mut text));
    read?;
    if output.limit() == 0 {
        return Err(io::ErrorKind::FileTooLarge.into());
    }
    let status = converter.wait().await?;
    if status.success() { Ok(text) } else { Err(io::Error::other(status.to_string())) }
}

/// The child process: reads a page, writes Markdown.
pub fn convert_page() -> ExitCode {
    use std::io::{Read as _, Write as _};

    let bounds = [(Resource::Cpu, SECONDS), (Resource::As, MEMORY), (Resource::Core, 0)];
    for (resource, most) in bounds {
        let limit = Rlimit { current: Some(most), maximum: Some(most) };
        if setrlimit(resource, limit).is_err() {
            return ExitCode::FAILURE;
        }
    }
    // Linux passes cores on to a program that gathers them, whatever the limit is.
    #[cfg(target_os = "linux")]
    if set_dumpable_behavior(DumpableBehavior::NotDumpable).is_err() {
        return ExitCode::FAILURE;
    }
    let mut html = String::new();
    if io::stdin().lock().read_to_string(&mut html).is_err() {
        return ExitCode::FAILURE;
    }
    match io::stdout().lock().write_all(convert(&html).as_bytes()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}

/// The text of a page with its tags removed.
fn strip_tags(html: &str) -> String {
    let mut text = String::new();
    for piece in html.split('<') {
        let (_, rest) = piece.split_once('>').unwrap_or(("", piece));
        for word in rest.split_whitespace() {
            text.push_str(word);
            text.push(' ');
        }
    }
    text.trim_end().to_owned()
}

fn convert(html: &str) -> String {
    let converter = HtmlToMarkdown::builder().skip_tags(LEFT_OUT.to_vec()).build();
    converter.convert(html).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn private_addresses_by_table() {
        for (address, expected) in [
            ("127.0.0.1", true),
            ("10.1.2.3", true),
            ("172.16.0.1", true),
            ("172.32.0.1", false),
            ("192.168.1.1", true),
            ("169.254.169.254", true),
            ("100.64.0.1", true),
            ("100.128.0.1", false),
            ("0.0.0.0", true),
            ("224.0.0.1", true),
            ("255.255.255.255", true),
            ("192.0.0.8", true),
            ("198.18.0.1", true),
            ("93.184.216.34", false),
            ("1.1.1.1", false),
            ("::1", true),
            ("::", true),
            ("fe80::1", true),
            ("fec0::1", true),
            ("fd00::1", true),
            ("ff02::1", true),
            ("::ffff:127.0.0.1", true),
            ("::ffff:8.8.8.8", false),
            ("::127.0.0.1", true),
            ("64:ff9b::7f00:1", true),
            ("64:ff9b::808:808", false),
            ("64:ff9b:1::1", true),
            ("2002:7f00:1::", true),
            ("2002:808:808::", false),
            ("2001::1", true),
            ("2001:db8::1", true),
            ("2606:4700::1111", false),
        ] {
            assert_eq!(is_private(address.parse().expect("an address")), expected, "{address}");
        }
    }

    #[tokio::test]
    async fn private_address_is_refused_in_every_spelling() {
        for (url, kind) in [
            ("file:///etc/passwd", ErrorType::ValidationError),
            ("ftp://example.com", ErrorType::ValidationError),
            ("http://user:secret@example.com", ErrorType::ValidationError),
            ("nonsense", ErrorType::ValidationError),
            ("http://127.0.0.1:1/", ErrorType::Forbidden),
            ("http://2130706433/", ErrorType::Forbidden),
            ("http://0x7f.1/", ErrorType::Forbidden),
            ("http://[::1]/", ErrorType::Forbidden),
            ("http://[::ffff:7f00:1]/", ErrorType::Forbidden),
            ("http://localhost/", ErrorType::Forbidden),
            ("http://169.254.169.254/latest/meta-data/", ErrorType::Forbidden),
        ] {
            let input = FetchArguments { url: url.to_owned(), timeout_ms: 5000, max_bytes: 100 };
            let error = fetch(&input, false).await.expect_err(url);
            assert_eq!(error.kind, kind, "{url}: {error:?}");
        }
    }

    #[test]
    fn charset_is_that_of_the_mark_the_header_or_the_page() {
        for (parameters, body, is_html, expected) in [
            ("", "é".as_bytes(), false, "é"),
            ("", b"\xe9", false, "\u{fffd}"),
            ("charset=ISO-8859-1", b"\xe9 \x80", false, "é €"),
            (" Charset = \"windows-1251\" ; x=y", b"\xcf\xf0\xe8", false, "При"),
            ("charset=shift_jis", b"\x93\xfa\x96\x7b", true, "日本"),
            ("charset=utf-16le", b"a\0\xe9\0", false, "aé"),
            ("charset=latin1", b"\xef\xbb\xbf\xc3\xa9", false, "é"),
            ("", b"\xff\xfea\0", false, "a"),
            ("charset=unknown", "é".as_bytes(), false, "é"),
            ("", b"<META charset='gbk'>\xd6\xd0", true, "<META charset='gbk'>中"),
            ("", b"<meta charset=gbk>\xd6", false, "<meta charset=gbk>\u{fffd}"),
            ("charset=utf-8", "<meta charset=gbk>é".as_bytes(), true, "<meta charset=gbk>é"),
            ("", "<meta charset=utf-16>é".as_bytes(), true, "<meta charset=utf-16>é"),
            (
                "",
                b"<meta http-equiv=Content-Type content=\"text/html; charset=latin1\">\xe9",
                true,
                "<meta http-equiv=Content-Type content=\"text/html; charset=latin1\">é",
            ),
            (
                "",
                b"<?xml version='1.0' encoding='iso-8859-15'?>\xa4",
                true,
                "<?xml version='1.0' encoding='iso-8859-15'?>€",
            ),
        ] {
            assert_eq!(decoded(body, charset_of(parameters), is_html), expected, "{expected}");
        }
    }

    #[test]
    fn pages_convert_by_table() {
        for (html, expected) in [
            ("<h1>Title</h1><p>Some <b>bold</b> text.</p>", "# Title\n\nSome **bold** text."),
            ("<a href=\"/x\">link</a>", "[link](/x)"),
            ("<head><title>t</title><style>s</style></head><script>evil()</script>text", "text"),
            ("plain", "plain"),
            ("", ""),
        ] {
            assert_eq!(convert(html).trim(), expected, "{html}");
        }
        assert_eq!(strip_tags("a <b>c\n d</b><i"), "a c d i");
    }
}
