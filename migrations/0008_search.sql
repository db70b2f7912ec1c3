-- What records are found by. A record that is resolved has a row in `ghap_text`, written with it; triggers do the rest, so
-- that an index never says what its record does not.

-- Terms of a record: words folded, split where identifiers have seams, and stemmed, with a space between.
create table ghap_text (
    id integer primary key,
    -- goal and hypothesis
    aim text not null,
    -- surprise, root cause, lesson
    lesson text not null,
    -- action, prediction, result
    rest text not null
) strict;

-- Terms are made by the program, which has to agree with itself between writing and asking; nothing is left to fold.
create virtual table ghap_fts using fts5 (
    aim, lesson, rest, content = 'ghap_text', content_rowid = 'id', tokenize = 'unicode61 remove_diacritics 0'
);

-- Where each term stands. BM25 over a prompt with all that its words may mean goes through every phrase for every row; a sum
-- over this does not.
create virtual table ghap_place using fts5vocab (ghap_fts, instance);

-- In how many records each term stands.
create table term (
    id integer primary key,
    term text not null unique,
    records integer not null
) strict;

-- For a word that no record has: the terms that look like it.
create virtual table term_trigram using fts5 (term, content = 'term', content_rowid = 'id', tokenize = 'trigram');

create trigger term_added after insert on term begin
    insert into term_trigram (rowid, term) values (new.id, new.term);
end;

create trigger term_removed after delete on term begin
    insert into term_trigram (term_trigram, rowid, term) values ('delete', old.id, old.term);
end;

create trigger ghap_text_added after insert on ghap_text begin
    insert into ghap_fts (rowid, aim, lesson, rest) values (new.id, new.aim, new.lesson, new.rest);
    insert into term (term, records)
    select distinct value, 1
    from json_each('["' || replace(new.aim || ' ' || new.lesson || ' ' || new.rest, ' ', '","') || '"]')
    where value <> ''
    on conflict (term) do update set records = records + 1;
end;

create trigger ghap_text_removed after delete on ghap_text begin
    insert into ghap_fts (ghap_fts, rowid, aim, lesson, rest)
    values ('delete', old.id, old.aim, old.lesson, old.rest);
    update term set records = records - 1
    where term in (
        select value
        from json_each('["' || replace(old.aim || ' ' || old.lesson || ' ' || old.rest, ' ', '","') || '"]')
    );
end;

-- Of what is gone or says something else now. Whoever changes a record writes its terms anew.
create trigger ghap_unsaid after update of goal, hypothesis, action, prediction, result, surprise, root_cause, what_worked,
    takeaway on ghap
begin
    delete from ghap_text where id = old.id;
end;

create trigger ghap_removed after delete on ghap begin
    delete from ghap_text where id = old.id;
end;
