-- What did the trainer log of each step of a run?
--
-- The log is kept with each capture, as it was then: of a step the line of the last capture counts.
--
-- title: The trainer's log
-- meaning: Time and tokens per second of each step of a run, as the trainer logged them.
--
--   run           varchar  run of the training job
--   step          bigint   step of the log
--   elapsed_s     double   time of the step
--   tokens_per_s  double   tokens per second, of the job or the device as logged
with
_places as (
    select run, step, elapsed_s, tokens_per_s,
        row_number() over (partition by run, step order by capture desc, rank desc) as place
    from train_log
    where step is not null
)
select run, step, elapsed_s, tokens_per_s from _places where place = 1
