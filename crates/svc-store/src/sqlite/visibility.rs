//! Visibility of a stream, as columns of `stream`.

use std::sync::Arc;

use svc_model::StreamVisibility;

pub(super) struct VisibilityColumns {
    pub(super) visibility: &'static str,
    pub(super) owner: Option<Arc<str>>,
    pub(super) runner: Option<Arc<str>>,
    pub(super) project: Option<Arc<str>>,
}

impl From<&StreamVisibility> for VisibilityColumns {
    fn from(visibility: &StreamVisibility) -> Self {
        let none = Self { visibility: "operator", owner: None, runner: None, project: None };
        match visibility {
            StreamVisibility::Team => Self { visibility: "team", ..none },
            StreamVisibility::Shared { owner, runner, project } => Self {
                owner: owner.clone(),
                runner: runner.clone(),
                project: Some(project.clone().unwrap_or_else(|| "".into())),
                ..none
            },
            StreamVisibility::Private { owner } => Self { owner: Some(Arc::clone(owner)), ..none },
            StreamVisibility::Answers => none,
        }
    }
}

/// The visibility from its columns. An unknown word means that only the operator may read.
pub(crate) fn visibility_of(
    visibility: &str,
    owner: Option<String>,
    runner: Option<String>,
    project: Option<String>,
) -> StreamVisibility {
    match (visibility, owner, project) {
        ("team", ..) => StreamVisibility::Team,
        ("operator", owner, Some(project)) => StreamVisibility::Shared {
            owner: owner.map(Arc::from),
            runner: runner.map(Arc::from),
            project: (!project.is_empty()).then(|| project.into()),
        },
        ("operator", Some(owner), None) => StreamVisibility::Private { owner: owner.into() },
        _ => StreamVisibility::Answers,
    }
}
