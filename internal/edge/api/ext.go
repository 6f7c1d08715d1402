package api

import (
	"strconv"

	"penstock/core/kv"
	"penstock/internal/strictjson"
)

// AppendExt appends the member "nvext" of an answer, preceded by a comma; nothing if x is nil.
func AppendExt(dst []byte, x *AnswerExt) []byte {
	if x == nil {
		return dst
	}
	if x.Query != nil {
		return appendQueryAnswer(dst, x.Query, x.Annotated)
	}
	dst = append(dst, `,"nvext":{"attempts":`...)
	dst = strconv.AppendInt(dst, int64(len(x.Attempts)), 10)
	dst = append(dst, `,"workers":[`...)
	for i, a := range x.Attempts {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = appendAttempt(dst, a)
	}
	dst = append(dst, ']')
	if n := len(x.Attempts); x.WorkerFields && n > 0 {
		dst = append(dst, ',')
		dst = appendWorkerFields(dst, x.Attempts[n-1].Worker)
	}
	return append(x.Annotated.AppendMembers(dst), '}')
}

func appendAttempt(dst []byte, a Attempt) []byte {
	dst = append(dst, `{"prompt":`...)
	dst = strconv.AppendInt(dst, int64(a.Prompt), 10)
	dst = append(dst, `,"attempt":`...)
	dst = strconv.AppendUint(dst, uint64(a.Number), 10)
	dst = append(dst, `,"worker_id":`...)
	dst = strconv.AppendUint(dst, uint64(a.Worker.ID), 10)
	dst = append(dst, `,"dp_rank":`...)
	dst = strconv.AppendUint(dst, uint64(a.Worker.Rank), 10)
	dst = append(dst, `,"overlap_blocks":`...)
	dst = strconv.AppendInt(dst, int64(a.OverlapBlocks), 10)
	dst = append(dst, `,"predicted_cached_tokens":`...)
	dst = strconv.AppendInt(dst, int64(a.Predicted), 10)
	if a.Reported != CachedUnknown {
		dst = append(dst, `,"reported_cached_tokens":`...)
		dst = strconv.AppendInt(dst, int64(a.Reported), 10)
	}
	if a.Inexact {
		dst = append(dst, `,"inexact":true`...)
	}
	return append(dst, '}')
}

func appendWorkerFields(dst []byte, w kv.Worker) []byte {
	dst = append(dst, `"worker_id":{`...)
	return append(appendWorkerMembers(dst, w), '}')
}

// appendWorkerMembers appends w as both the prefill and the decode worker.
func appendWorkerMembers(dst []byte, w kv.Worker) []byte {
	id, rank := uint64(w.ID), uint64(w.Rank)
	dst = strconv.AppendUint(append(dst, `"prefill_worker_id":`...), id, 10)
	dst = strconv.AppendUint(append(dst, `,"prefill_dp_rank":`...), rank, 10)
	dst = strconv.AppendUint(append(dst, `,"decode_worker_id":`...), id, 10)
	dst = strconv.AppendUint(append(dst, `,"decode_dp_rank":`...), rank, 10)
	return dst
}

func appendQueryAnswer(dst []byte, q *QueryAnswer, a *Annotated) []byte {
	dst = append(dst, `,"nvext":{`...)
	dst = appendWorkerFields(dst, q.Worker)
	dst = append(dst, `,"overlap_blocks":`...)
	dst = strconv.AppendInt(dst, int64(q.OverlapBlocks), 10)
	dst = append(dst, `,"token_ids":`...)
	dst = AppendTokens(dst, q.Tokens)
	if q.TextOnly != "" {
		dst = append(dst, `,"text_only":`...)
		dst = strictjson.AppendString(dst, q.TextOnly)
	}
	return append(a.AppendMembers(dst), '}')
}

// AppendTokens appends token ids as a JSON array.
func AppendTokens(dst []byte, tokens []kv.Token) []byte {
	dst = append(dst, '[')
	for i, t := range tokens {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = strconv.AppendUint(dst, uint64(t), 10)
	}
	return append(dst, ']')
}
