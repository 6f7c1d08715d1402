package trace

import (
	"bufio"
	"fmt"
	"time"

	"penstock/internal/replay"
)

// The columns of the BurstGPT traces.
const (
	burstTime = iota
	burstSession
	burstElapsed
	burstModel
	burstInput
	burstOutput
	burstTotal
	burstLog
)

func burstColumns() []column {
	return []column{
		burstTime:    {"Timestamp", required},
		burstSession: {"Session ID", optional},
		burstElapsed: {"Elapsed time", ignored}, // of the recorded response
		burstModel:   {"Model", ignored},        // of the recorded service
		burstInput:   {"Request tokens", required},
		burstOutput:  {"Response tokens", required},
		burstTotal:   {"Total tokens", ignored},
		burstLog:     {"Log Type", ignored},
	}
}

// burstDecoder reads the BurstGPT traces.
type burst struct{ table }

func newBurst(from *bufio.Reader, opts *Options) *burst {
	d := &burst{newTable(from, BurstGPT, burstColumns(), opts)}
	d.read = d.row
	return d
}

func (d *burst) row(r *replay.Request) (err error) {
	if r.At, err = parseTime(d.value(burstTime), time.Second); err != nil {
		return d.wrong(burstTime, err)
	}
	if r.Input, err = d.count(burstInput, maxTokens); err != nil {
		return err
	}
	if r.Output, err = d.count(burstOutput, maxTokens); err != nil {
		return err
	}
	if r.Session = d.value(burstSession); len(r.Session) > maxName {
		return d.wrong(burstSession, fmt.Errorf("must have at most %d bytes, not %d", maxName, len(r.Session)))
	}
	return nil
}
