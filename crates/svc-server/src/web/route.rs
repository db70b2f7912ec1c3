//! The name of a route, for metrics.

use axum::response::Response;
use tower::util::MapResponseLayer;

/// The route that answered, as it stands in the table: an id in a path would make a series each.
#[derive(Debug, Clone, Copy)]
pub struct RouteName(&'static str);

impl RouteName {
    /// The name of no route.
    pub const NONE: &str = "";

    /// Notes it on every response of the route.
    pub fn layer(
        name: &'static str,
    ) -> MapResponseLayer<impl Fn(Response) -> Response + Clone + Send + Sync + 'static> {
        MapResponseLayer::new(move |mut response: Response| {
            response.extensions_mut().insert(Self(name));
            response
        })
    }

    /// The one that was noted, or nothing.
    pub fn from_response<B>(response: &http::Response<B>) -> &'static str {
        response.extensions().get::<Self>().map_or(Self::NONE, |route| route.0)
    }
}
