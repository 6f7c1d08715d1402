package encode

import "time"

// Stats are figures of a machine. Counters are since its start.
type Stats struct {
	// Requests are the submits which were not refused, and Ended their ends by Ending. The others are in one of
	// EncodingRequests (not reported), ReadyRequests (reported, and not merged) and ActiveRequests (merged at least
	// once).
	Requests                                        uint64
	Ended                                           [Cancelled + 1]uint64
	EncodingRequests, ReadyRequests, ActiveRequests int

	// Jobs are the objects which an encoder was given, each counted once, and Repeats the further times. Runs are
	// the runs in which that happened.
	Jobs, Repeats, Runs uint64
	// EncodeTime is the sum of the times of runs which made rows for a request, each from RunBatch to FinishRun and
	// counted once whatever its batch. A run which was split counts until the last FinishRun of its parts.
	EncodeTime time.Duration
	// Encoded are the objects for which an encoder made rows, and EncodedBytes the size of these.
	Encoded, EncodedBytes uint64
	// Failures are the objects which have failed, by FailureKind.
	Failures [failureKinds]uint64
	// LateReports are reports about runs which had ended.
	LateReports uint64

	// CacheHits are the objects which needed no job, since the embedding cache or the machine had their rows.
	// CacheMisses are the others, once memory was reserved for them.
	CacheHits, CacheMisses uint64
	// Evictions are the kept rows which made room for others.
	Evictions uint64

	// QueuedObjects have memory and wait for an encoder. RunningObjects hold one of MaxJobs permits, also if
	// their request has ended. CompletedObjects have rows which are not merged for the first time.
	QueuedObjects, RunningObjects, MaxJobs, CompletedObjects int
	// WaitingRequests wait for memory of CPUBudget, and StagingRequests for staging memory.
	WaitingRequests, StagingRequests int

	// CPUBytes is what is reserved of CPUBudget, for rows which are there, are being written or will be.
	// KeptBytes is the part of it which no request uses. StagingBytes is what is granted of StagingBudget.
	CPUBytes, KeptBytes, CPUBudget, StagingBytes, StagingBudget int64
	// KeptRows are the objects which have KeptBytes.
	KeptRows int
}

// Stats returns the figures of now.
func (m *Machine) Stats() Stats {
	s := m.stats
	for _, q := range m.requests {
		switch {
		case q.state == Encoding:
			s.EncodingRequests++
		case q.merged:
			s.ActiveRequests++
			continue
		default:
			s.ReadyRequests++
			s.CompletedObjects += len(q.objects)
			continue
		}
		for i := range q.objects {
			switch o := &q.objects[i]; {
			case o.state == EncodedCPU:
				s.CompletedObjects++
			case o.group != nil:
				s.QueuedObjects++
			}
		}
	}
	s.RunningObjects, s.MaxJobs = m.running, m.cfg.MaxJobs
	s.WaitingRequests, s.StagingRequests = m.waiting.Len(), m.stageQueue.Len()
	s.CPUBytes, s.CPUBudget, s.KeptBytes, s.KeptRows = m.cpuUsed, m.cfg.CPUBudget, m.idleBytes, m.idle.Len()
	s.StagingBytes, s.StagingBudget = m.stagingUsed, m.cfg.StagingBudget
	return s
}

// EncoderLoad is what one encoder does.
type EncoderLoad struct {
	Encoder EncoderID
	// InFlight are the objects of its runs, and Capacity is how many there may be.
	InFlight, Capacity int
}

// Utilization returns InFlight as a share of Capacity.
func (l EncoderLoad) Utilization() float64 { return float64(l.InFlight) / float64(l.Capacity) }

// AppendEncoders appends the load of each encoder to dst, by id.
func (m *Machine) AppendEncoders(dst []EncoderLoad) []EncoderLoad {
	for _, e := range m.encoders {
		dst = append(dst, EncoderLoad{Encoder: e.id, InFlight: e.jobs, Capacity: e.limits.Jobs})
	}
	return dst
}
