-- What did the trainer log last?
--
-- The last step of the training log, of the highest rank that logged it.
--
-- title: Training log
-- meaning: The last step of the trainer's own log: loss, time, tokens.
-- gauge: npuscope_train_step = last_step: Last step in the training log.
-- gauge: npuscope_train_loss = loss: Loss of that step, from the training log.
-- gauge: npuscope_train_grad_norm = grad_norm: Gradient norm of that step, from the training log.
-- gauge: npuscope_train_step_seconds = elapsed_s: Time of that step, from the training log.
-- gauge: npuscope_train_tokens_per_second = tokens_per_s: Tokens per second, from the training log, of the job or the device as logged.
-- gauge: npuscope_train_mfu_ratio = mfu_ratio: MFU reported in the training log.
--
--   run           varchar  run of the training job
--   capture       varchar  ranks profiled at the same time
--   last_step     bigint   step of the log
--   loss          double   loss
--   grad_norm     double   norm of the gradients
--   elapsed_s     double   time of the step
--   tokens_per_s  double   tokens per second, of the job or the device as logged
--   mfu_ratio     double   MFU by the trainer's own count
with
_last as (
    select run, capture, arg_max(struct_pack(step, loss, grad_norm, elapsed_s, tokens_per_s, mfu_ratio),
        struct_pack(step, rank)) as last
    from train_log where step is not null group by run, capture
)
select run, capture, last.step as last_step, last.loss, last.grad_norm, last.elapsed_s, last.tokens_per_s, last.mfu_ratio
from _last order by run, capture
