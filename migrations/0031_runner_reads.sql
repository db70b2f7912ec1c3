-- Whoever runs a task reads its stream, also when the task belongs to another project.

-- text form of the principal that runs it, of a task; null of all other streams
alter table stream add column runner text;

-- What the operator gave to a session had that session as its owner.
update stream set owner = t.created_by, runner = t.runner from task t where t.stream_id = stream.id;
