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

func burstColumns() []tableColumn {
	return []tableColumn{
		burstTime:    {"Timestamp", requiredColumn},
		burstSession: {"Session ID", optionalColumn},
		burstElapsed: {"Elapsed time", ignoredColumn}, // of the recorded response
		burstModel:   {"Model", ignoredColumn},        // of the recorded service
		burstInput:   {"Request tokens", requiredColumn},
		burstOutput:  {"Response tokens", requiredColumn},
		burstTotal:   {"Total tokens", ignoredColumn},
		burstLog:     {"Log Type", ignoredColumn},
	}
}

// burstDecoder reads the BurstGPT traces.
type burstDecoder struct{ csvTable }

func newBurstDecoder(from *bufio.Reader, opts *Options) *burstDecoder {
	d := &burstDecoder{newCSVTable(from, BurstGPT, burstColumns(), opts)}
	d.parseRow = d.readRow
	return d
}

func (d *burstDecoder) readRow(r *replay.Request) (err error) {
	if r.At, err = parseTime(d.columnValue(burstTime), time.Second); err != nil {
		return d.columnError(burstTime, err)
	}
	if r.Input, err = d.readCount(burstInput, maxTokens); err != nil {
		return err
	}
	if r.Output, err = d.readCount(burstOutput, maxTokens); err != nil {
		return err
	}
	if r.Session = d.columnValue(burstSession); len(r.Session) > maxName {
		return d.columnError(burstSession, fmt.Errorf("must have at most %d bytes, not %d", maxName, len(r.Session)))
	}
	return nil
}
