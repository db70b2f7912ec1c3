//! The name of a route, for metrics.

use axum::response::Response;
use tower::util::MapResponseLayer;

/// The pattern of the route that responded: a path would make a series for each id.
#[derive(Debug, Clone, Copy)]
pub struct RouteName(&'static str);

impl RouteName {
    /// The name if no route matched.
    pub const NONE: &str = "";

    /// A layer that adds the name to every response of the route.
    pub fn layer(
        name: &'static str,
    ) -> MapResponseLayer<impl Fn(Response) -> Response + Clone + Send + Sync + 'static> {
        MapResponseLayer::new(move |mut response: Response| {
            response.extensions_mut().insert(Self(name));
            response
        })
    }

    /// The name in a response, or `NONE`.
    pub fn from_response<B>(response: &http::Response<B>) -> &'static str {
        response.extensions().get::<Self>().map_or(Self::NONE, |route| route.0)
    }
}
