package config

import "testing"

// TestByteSize: sizes are read with and without a unit, and printed as they are written.
func TestByteSize(t *testing.T) {
	for text, want := range map[string]ByteSize{
		"0": 0, "1000": 1000, "16GB": 16e9, "16 gb": 16e9, "1.5GiB": 3 << 29, "512MiB": 512 << 20, "2kB": 2000, "3TB": 3e12,
	} {
		if got, err := ParseByteSize(text); err != nil || got != want {
			t.Errorf("%q is %d (%v), want %d", text, got, err, want)
		}
	}
	for _, text := range []string{"", "GB", "-1", "x", "1PB", "1e30", "NaN", "1 2"} {
		if got, err := ParseByteSize(text); err == nil {
			t.Errorf("%q is %d", text, got)
		}
	}
	for size, want := range map[ByteSize]string{0: "0", 16e9: "16GB", 3 << 29: "1536MiB", 1001: "1001", 4096: "4KiB"} {
		if got := size.String(); got != want {
			t.Errorf("%d is %q, want %q", int64(size), got, want)
		}
	}
}

// TestEncodeSettings: the encoders' settings are flags and keys, with their bounds.
func TestEncodeSettings(t *testing.T) {
	c := Defaults(Worker).Encode
	if c.MaxJobs != 32 || c.Threads != 4 || c.Batch != 8 || c.BatchWait.String() != "5ms" || c.Timeout.String() != "1m0s" || c.CPUBudget != 16e9 || c.StagingBudget != 4e9 {
		t.Errorf("%+v", c)
	}
	for env, ok := range map[string]bool{
		"ENCODE_CPU_BUDGET=1GiB": true, "ENCODE_CPU_BUDGET=0": false, "ENCODE_STAGING_BUDGET=much": false, "ENCODE_THREADS=0": false,
		"ENCODE_MAX_JOBS=0": false, "ENCODE_BATCH=0": false, "ENCODE_TIMEOUT=0s": false, "ENCODE_BATCH_WAIT=0s": true, "ENCODE_BATCH_WAIT=-1s": false,
	} {
		if _, err := Load("", []string{"PENSTOCK_NATS_LISTEN=127.0.0.1:0", "PENSTOCK_" + env}, NoFlags(Worker)); (err == nil) != ok {
			t.Errorf("%s: %v", env, err)
		}
	}
}
