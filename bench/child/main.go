package child

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"
)

// Main runs a benchmark until it ends, is interrupted, or limit has passed, and exits with 1 after an error, which it
// prints behind the name.
func Main(name string, limit time.Duration, run func(context.Context) error) {
	if err := runLimited(limit, run); err != nil {
		fmt.Fprintln(os.Stderr, name+":", err)
		os.Exit(1)
	}
}

func runLimited(limit time.Duration, run func(context.Context) error) error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	return run(ctx)
}
