package xfer_test

import (
	"os"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	if role := os.Getenv(childRole); role != "" {
		runChild(role)
		return
	}
	goleak.VerifyTestMain(m)
}

const childRole = "PENSTOCK_XFER_CHILD"

func runChild(string) {}
