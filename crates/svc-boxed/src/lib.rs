//! The attribute `#[boxed_methods]` of an `impl` block, which gives `#[boxed]` to its methods.

use proc_macro::{Delimiter, Group, TokenStream, TokenTree};

/// Gives the attribute `#[boxed]` of the crate to each `pub async fn` of an `impl` block.
#[proc_macro_attribute]
pub fn boxed_methods(_: TokenStream, block: TokenStream) -> TokenStream {
    let of_block = |token: TokenTree| match token {
        TokenTree::Group(methods) if methods.delimiter() == Delimiter::Brace => {
            let mut boxed = Group::new(Delimiter::Brace, with_attributes(methods.stream()));
            boxed.set_span(methods.span());
            boxed.into()
        }
        other => other,
    };
    block.into_iter().map(of_block).collect()
}

fn with_attributes(methods: TokenStream) -> TokenStream {
    let attribute: TokenStream = "#[crate::boxed]".parse().expect("an attribute is tokens");
    let tokens: Vec<TokenTree> = methods.into_iter().collect();
    let mut boxed = TokenStream::new();
    for (at, token) in tokens.iter().enumerate() {
        let is_word = |ahead: usize, word: &str| matches!(tokens.get(at + ahead), Some(TokenTree::Ident(found)) if found.to_string() == word);
        if is_word(0, "pub") && is_word(1, "async") && is_word(2, "fn") {
            boxed.extend(attribute.clone());
        }
        boxed.extend([token.clone()]);
    }
    boxed
}
