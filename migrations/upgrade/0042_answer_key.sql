-- What the daemon shows an agent's host when it answers a request of the agent, so that nothing else that reaches the host's
-- socket answers one. It goes with the agent.
alter table agent add column answer_key text;
