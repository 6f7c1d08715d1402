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
	dst = strictjson.AppendInt(dst, `,"nvext":{"attempts":`, len(x.Attempts))
	dst = append(dst, `,"workers":[`...)
	for i, a := range x.Attempts {
		dst = strictjson.AppendComma(dst, i)
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
	dst = strictjson.AppendInt(dst, `{"prompt":`, a.Prompt)
	dst = append(dst, `,"attempt":`...)
	dst = strconv.AppendUint(dst, uint64(a.Number), 10)
	dst = append(dst, `,"worker_id":`...)
	dst = strconv.AppendUint(dst, uint64(a.Worker.ID), 10)
	dst = append(dst, `,"dp_rank":`...)
	dst = strconv.AppendUint(dst, uint64(a.Worker.Rank), 10)
	dst = strictjson.AppendInt(dst, `,"overlap_blocks":`, a.OverlapBlocks)
	dst = strictjson.AppendInt(dst, `,"predicted_cached_tokens":`, a.Predicted)
	if a.Reported != CachedUnknown {
		dst = strictjson.AppendInt(dst, `,"reported_cached_tokens":`, a.Reported)
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
	dst = strictjson.AppendInt(dst, `,"overlap_blocks":`, q.OverlapBlocks)
	dst = append(dst, `,"token_ids":`...)
	dst = strictjson.AppendTokens(dst, q.Tokens)
	if q.TextOnly != "" {
		dst = strictjson.AppendMember(dst, `,"text_only":`, q.TextOnly)
	}
	return append(a.AppendMembers(dst), '}')
}
