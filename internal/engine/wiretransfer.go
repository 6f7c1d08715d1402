package engine

import "penstock/core/kv"

// The fields of a request to encode. Numbers are never reused.
const (
	encodeID = iota + 1
	encodeAttempt
	encodeModel
	encodeNamespace
	encodeEncoder
	encodeInline
	encodeObject // repeated
)

// The fields of encoded rows. Numbers are never reused.
const (
	encodedAttempt = iota + 1
	encodedObject
	encodedCached
	encodedRows
)

// The fields of a request to prefill. Numbers are never reused.
const (
	prefillID = iota + 1
	prefillAttempt
	prefillModel
	prefillWorker
	prefillRank
	prefillEpoch
	prefillAddr
	prefillHandle
	prefillTokens
	prefillHeld
	prefillBudget
	prefillInto
)

// The fields of the progress of a prefill. Numbers are never reused.
const (
	prefilledAttempt = iota + 1
	prefilledComputed
	prefilledCached
	prefilledBlocks
	prefilledBytes
	prefilledDone
	prefilledDigest
)

// The fields of a request to fetch. Numbers are never reused.
const (
	fetchID = iota + 1
	fetchAttempt
	fetchHandle
	fetchInto
)

// The fields of what is fetched. Numbers are never reused.
const (
	fetchedAttempt = iota + 1
	fetchedData
	fetchedLast
	fetchedTotal
	fetchedDigest
)

// AppendEncodeRequest appends the encoding of r to dst.
func AppendEncodeRequest(dst []byte, r *EncodeRequest) []byte {
	dst = append(dst, legVersion)
	dst = appendString(dst, encodeID, r.ID)
	dst = appendUint(dst, encodeAttempt, uint64(r.Attempt))
	dst = appendString(dst, encodeModel, r.Model)
	dst = appendString(dst, encodeNamespace, r.Namespace)
	dst = appendString(dst, encodeEncoder, r.Encoder)
	dst = appendBool(dst, encodeInline, r.Inline)
	return appendObjects(dst, encodeObject, r.Objects)
}

// DecodeEncodeRequest sets r to the request that b encodes and keeps nothing of b. It fails on malformed bytes;
// [EncodeRequest.Validate] checks the values. After an error r is unspecified.
func DecodeEncodeRequest(b []byte, r *EncodeRequest) error {
	*r = EncodeRequest{}
	d, err := newReader("request to encode", b, legVersion)
	if err != nil {
		return err
	}
	for d.nextField() {
		switch d.field {
		case encodeID:
			r.ID = d.readString("")
		case encodeAttempt:
			r.Attempt = d.readUint32()
		case encodeModel:
			r.Model = d.readString("")
		case encodeNamespace:
			r.Namespace = d.readString("")
		case encodeEncoder:
			if r.Encoder = d.readString(""); len(r.Encoder) > maxEncoder {
				d.fail()
			}
		case encodeInline:
			r.Inline = d.readBool()
		case encodeObject:
			r.Objects = d.readObject(r.Objects, legVersion)
		default:
			d.skipField()
		}
	}
	return d.err()
}

// AppendEncoded appends the encoding of e to dst.
func AppendEncoded(dst []byte, e *Encoded) []byte {
	dst = append(dst, legVersion)
	dst = appendUint(dst, encodedAttempt, uint64(e.Attempt))
	dst = appendInt(dst, encodedObject, e.Object)
	dst = appendBool(dst, encodedCached, e.Cached)
	return appendRows(dst, encodedRows, &e.Rows)
}

// DecodeEncoded sets e to the rows that b encodes and keeps nothing of b. After an error e is unspecified.
func DecodeEncoded(b []byte, e *Encoded) error {
	*e = Encoded{}
	d, err := newReader("encoded object", b, legVersion)
	if err != nil {
		return err
	}
	found := false
	for d.nextField() {
		switch d.field {
		case encodedAttempt:
			e.Attempt = d.readUint32()
		case encodedObject:
			if e.Object = d.readInt(); e.Object < 0 || e.Object >= MaxObjects {
				d.fail()
			}
		case encodedCached:
			e.Cached = d.readBool()
		case encodedRows:
			e.Rows, found = *d.readRows(), true
		default:
			d.skipField()
		}
	}
	if !found {
		d.fail()
	}
	return d.err()
}

// AppendPrefillRequest appends the encoding of r to dst.
func AppendPrefillRequest(dst []byte, r *PrefillRequest) []byte {
	dst = append(dst, legVersion)
	dst = appendString(dst, prefillID, r.ID)
	dst = appendUint(dst, prefillAttempt, uint64(r.Attempt))
	dst = appendString(dst, prefillModel, r.Model)
	dst = appendUint(dst, prefillWorker, uint64(r.Decode.ID))
	dst = appendUint(dst, prefillRank, uint64(r.Decode.Rank))
	dst = appendFixed(dst, prefillEpoch, r.Epoch)
	dst = appendString(dst, prefillAddr, r.Addr)
	dst = appendBytes(dst, prefillHandle, r.Handle)
	dst = appendInt(dst, prefillTokens, r.Tokens)
	dst = appendInt(dst, prefillHeld, r.Held)
	dst = appendInt(dst, prefillBudget, r.Budget)
	return appendMessage(dst, prefillInto, appendBlockHandoff(nil, &r.Into))
}

// DecodePrefillRequest sets r to the request that b encodes and keeps nothing of b. It fails on malformed bytes;
// [PrefillRequest.Validate] checks the values. After an error r is unspecified.
func DecodePrefillRequest(b []byte, r *PrefillRequest) error {
	*r = PrefillRequest{}
	d, err := newReader("request to prefill", b, legVersion)
	if err != nil {
		return err
	}
	for d.nextField() {
		switch d.field {
		case prefillID:
			r.ID = d.readString("")
		case prefillAttempt:
			r.Attempt = d.readUint32()
		case prefillModel:
			r.Model = d.readString("")
		case prefillWorker:
			r.Decode.ID = kv.WorkerID(d.readUintUpTo(uint64(kv.MaxWorkerID)))
		case prefillRank:
			r.Decode.Rank = d.readUint32()
		case prefillEpoch:
			r.Epoch = d.readFixed()
		case prefillAddr:
			r.Addr = d.readString("")
		case prefillHandle:
			r.Handle = d.readBytesUpTo(MaxHandle)
		case prefillTokens:
			r.Tokens = d.readInt()
		case prefillHeld:
			r.Held = d.readInt()
		case prefillBudget:
			r.Budget = d.readInt()
		case prefillInto:
			d.readBlockHandoff(&r.Into)
		default:
			d.skipField()
		}
	}
	return d.err()
}

// AppendPrefilled appends the encoding of p to dst.
func AppendPrefilled(dst []byte, p *Prefilled) []byte {
	dst = append(dst, legVersion)
	dst = appendUint(dst, prefilledAttempt, uint64(p.Attempt))
	dst = appendInt(dst, prefilledComputed, p.Computed)
	dst = appendInt(dst, prefilledCached, p.Cached)
	dst = appendInt(dst, prefilledBlocks, p.Blocks)
	dst = appendUint(dst, prefilledBytes, p.Bytes)
	dst = appendBool(dst, prefilledDone, p.Done)
	return appendBytes(dst, prefilledDigest, p.Digest)
}

// DecodePrefilled sets p to the progress that b encodes and keeps nothing of b. After an error p is unspecified.
func DecodePrefilled(b []byte, p *Prefilled) error {
	*p = Prefilled{}
	d, err := newReader("progress of a prefill", b, legVersion)
	if err != nil {
		return err
	}
	for d.nextField() {
		switch d.field {
		case prefilledAttempt:
			p.Attempt = d.readUint32()
		case prefilledComputed:
			p.Computed = d.readInt()
		case prefilledCached:
			p.Cached = d.readInt()
		case prefilledBlocks:
			p.Blocks = d.readInt()
		case prefilledBytes:
			p.Bytes = d.readUint64()
		case prefilledDone:
			p.Done = d.readBool()
		case prefilledDigest:
			p.Digest = d.readBytesUpTo(maxDigest)
		default:
			d.skipField()
		}
	}
	return d.err()
}

// AppendFetchRequest appends the encoding of r to dst.
func AppendFetchRequest(dst []byte, r *FetchRequest) []byte {
	dst = append(dst, legVersion)
	dst = appendString(dst, fetchID, r.ID)
	dst = appendUint(dst, fetchAttempt, uint64(r.Attempt))
	dst = appendBytes(dst, fetchHandle, r.Handle)
	return appendBytes(dst, fetchInto, r.Into)
}

// DecodeFetchRequest sets r to the request that b encodes and keeps nothing of b. It fails on malformed bytes;
// [FetchRequest.Validate] checks the values. After an error r is unspecified.
func DecodeFetchRequest(b []byte, r *FetchRequest) error {
	*r = FetchRequest{}
	d, err := newReader("request to fetch", b, legVersion)
	if err != nil {
		return err
	}
	for d.nextField() {
		switch d.field {
		case fetchID:
			r.ID = d.readString("")
		case fetchAttempt:
			r.Attempt = d.readUint32()
		case fetchHandle:
			r.Handle = d.readBytesUpTo(MaxHandle)
		case fetchInto:
			r.Into = d.readBytesUpTo(MaxDescriptor)
		default:
			d.skipField()
		}
	}
	return d.err()
}

// AppendFetched appends the encoding of f to dst. It allocates only if dst must grow.
func AppendFetched(dst []byte, f *Fetched) []byte {
	dst = append(dst, legVersion)
	dst = appendUint(dst, fetchedAttempt, uint64(f.Attempt))
	dst = appendBytes(dst, fetchedData, f.Data)
	dst = appendBool(dst, fetchedLast, f.Last)
	dst = appendUint(dst, fetchedTotal, f.Total)
	return appendBytes(dst, fetchedDigest, f.Digest)
}

// DecodeFetched sets f to the frame that b encodes. It reuses f's slices and keeps nothing of b. After an error f
// is unspecified.
func DecodeFetched(b []byte, f *Fetched) error {
	*f = Fetched{Data: f.Data[:0], Digest: f.Digest[:0]}
	d, err := newReader("piece of a fetch", b, legVersion)
	if err != nil {
		return err
	}
	for d.nextField() {
		switch d.field {
		case fetchedAttempt:
			f.Attempt = d.readUint32()
		case fetchedData:
			if f.Data = append(f.Data, d.readBytes()...); len(f.Data) > MaxPiece {
				d.fail()
			}
		case fetchedLast:
			f.Last = d.readBool()
		case fetchedTotal:
			f.Total = d.readUint64()
		case fetchedDigest:
			if f.Digest = append(f.Digest, d.readBytes()...); len(f.Digest) > maxDigest {
				d.fail()
			}
		default:
			d.skipField()
		}
	}
	return d.err()
}
