package xfer_test

import (
	"fmt"
	"os"
	"testing"

	"penstock/internal/fixturetest"
)

func TestMain(m *testing.M) {
	if role := os.Getenv(childRole); role != "" {
		if err := runChild(role); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	fixturetest.RunTests(m)
}
