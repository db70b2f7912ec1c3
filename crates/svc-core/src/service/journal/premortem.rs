//! Context before an attempt: failures and successes of similar ones.

use std::collections::HashSet;

use svc_model::{
    Caller, Reader,
    journal::{Domain, Ghap, Strategy},
    quote::{ModelText, model_text},
};
use svc_store::LessonKind;

use super::{
    Journal,
    bounded_markdown::{AssembledContext, BoundedMarkdown},
};
use crate::service::Error;

/// Bound on the records and values of a section.
const MOST: u32 = 5;

#[derive(Debug, Clone)]
pub struct PremortemRequest {
    pub domain: Domain,
    pub strategy: Option<Strategy>,
    /// The caller's session; records of its project come first.
    pub session_id: Option<String>,
    /// Bound, in bytes.
    pub budget: usize,
}

impl Journal {
    /// What the journal has on attempts of this kind.
    pub async fn premortem(
        &self,
        caller: &Caller,
        request: &PremortemRequest,
    ) -> Result<AssembledContext, Error> {
        let PremortemRequest { domain, strategy, budget, .. } = *request;
        let mut project = None;
        if let Some(session) = &request.session_id {
            self.team.acting_session(caller, None, Some(session), None).await?;
            project =
                self.core.store.sessions().get(session).await?.and_then(|session| session.project);
        }
        let reader = Reader::from_caller(caller);
        let project = caller.project().or(project.as_deref()).unwrap_or_default();
        let mut markdown = BoundedMarkdown::new(budget);

        let failed = self
            .core
            .store
            .ghaps()
            .telling(&reader, domain, strategy, LessonKind::Falsified, project, MOST)
            .await?;
        let mut given_texts = HashSet::new();
        for ghap in failed.iter().filter(|ghap| given_texts.insert((&ghap.goal, ghap.surprise()))) {
            let lesson = ghap.lesson();
            let takeaway =
                lesson.map(|lesson| lesson.takeaway.as_deref().unwrap_or(&lesson.what_worked));
            let cause = ghap.root_cause().map(|cause| cause.description.as_str());
            let texts = [
                ("Lesson", takeaway),
                ("Cause", cause),
                ("Hypothesis", Some(ghap.hypothesis.as_str())),
                ("Goal", Some(ghap.goal.as_str())),
            ];
            add(&mut markdown, "Common failures", &ghap_lead(ghap), &texts);
        }
        for row in self.core.store.calibration().hit_rates(&reader, domain, strategy).await? {
            let lead =
                model_text!("**{}** {} of {} confirmed", row.strategy, row.confirmed, row.records);
            add(&mut markdown, "Strategy performance", &lead, &[]);
        }
        let surprising = self
            .core
            .store
            .ghaps()
            .telling(&reader, domain, strategy, LessonKind::Surprising, project, MOST)
            .await?;
        let mut given_texts = HashSet::new();
        for ghap in surprising.iter().filter(|ghap| given_texts.insert(ghap.surprise())) {
            let texts =
                [("Surprise", ghap.surprise()), ("Prediction", Some(ghap.prediction.as_str()))];
            add(&mut markdown, "Unexpected outcomes", &ghap_lead(ghap), &texts);
        }
        for (category, count) in
            self.core.store.calibration().root_causes(&reader, domain, strategy).await?
        {
            let lead = model_text!("**{}** {}", category, count);
            add(&mut markdown, "Root causes to watch", &lead, &[]);
        }
        for value in self.core.store.values().of_domain(&reader, domain, MOST).await? {
            add(
                &mut markdown,
                "Relevant values",
                &ModelText::default(),
                &[("", Some(value.text.as_str()))],
            );
        }
        Ok(markdown.finish())
    }
}

fn ghap_lead(ghap: &Ghap) -> ModelText {
    model_text!("**{}** {}", ghap.strategy, ghap.id)
}

fn add(
    markdown: &mut BoundedMarkdown,
    heading: &'static str,
    lead: &ModelText,
    texts: &[(&'static str, Option<&str>)],
) {
    let texts: Vec<(&str, String)> =
        texts.iter().filter_map(|(name, text)| Some((*name, (*text)?.to_owned()))).collect();
    markdown.add(heading, None, lead, &texts);
}
