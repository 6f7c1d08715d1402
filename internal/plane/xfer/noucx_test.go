//go:build !ucx || !cgo

package xfer_test

import (
	"strings"
	"testing"

	"penstock/core/fault"
	"penstock/internal/plane/xfer"
)

// hasUCX tells that this build has UCX.
const hasUCX = false

// TestNoUCX: a build without UCX says so.
func TestNoUCX(t *testing.T) {
	_, err := xfer.NewUCXPlane(xfer.TCPConfig{})
	if fault.CodeOf(err) != fault.Unimplemented || !strings.Contains(err.Error(), "-tags ucx") {
		t.Error(err)
	}
}
