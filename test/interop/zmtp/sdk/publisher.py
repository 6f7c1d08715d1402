"""Publishes what the lines on standard input say, with the publisher of sdk/python.

publisher_test.go describes arguments and lines; every line is answered.
"""

import sys

from penstock import CxlMemoryMetadata, KvEventPublisher, MoeMetadata, StoredBlock


def main() -> None:
    endpoint, replay_endpoint = sys.argv[1:3]
    block_size, buffer_batches, queue = (int(number) for number in sys.argv[3:])
    kv_publisher = KvEventPublisher(
        endpoint, replay_endpoint, block_size=block_size, buffer_batches=buffer_batches, queue=queue
    )
    print(kv_publisher.endpoint, kv_publisher.replay_endpoint, flush=True)
    for event_id, line in enumerate(sys.stdin):
        method, *words = line.split()
        numbers = [int(word) for word in words]
        if method == "stored":
            layer, expert, *described = numbers
            blocks = [
                StoredBlock(described[at], described[at + 1 : at + 1 + block_size], MoeMetadata(layer, expert))
                for at in range(0, len(described), 1 + block_size)
            ]
            for stored_block in blocks:
                # As in the guide of the router, "Backend integration":
                stored_block.cxl_metadata = CxlMemoryMetadata(
                    state="local_gpu",
                    pool_id=None,
                    accessible_workers=[]
                )
            kv_publisher.publish_stored(event_id, blocks)
        elif method == "removed":
            kv_publisher.publish_removed(event_id, numbers)
        elif method == "cleared":
            kv_publisher.publish_all_cleared(event_id)
        elif method == "pooled":
            cxl_pool_id, decode_worker_1_id, decode_worker_2_id, *prefill_block_hashes = numbers
            kv_publisher.publish_cxl_state_transition(
                event_id=event_id,
                block_hashes=prefill_block_hashes,
                new_state="in_transit",
                pool_id=cxl_pool_id,
                accessible_workers=[decode_worker_1_id, decode_worker_2_id]
            )
            block_hashes = prefill_block_hashes
            kv_publisher.publish_cxl_state_transition(
                event_id=event_id,
                block_hashes=block_hashes,
                new_state="cxl_pooled"
            )
        elif method == "evicted":
            kv_publisher.publish_cxl_state_transition(event_id, numbers, "evicted")
        else:
            raise ValueError(f"the method {method} is unknown")
        print("done", flush=True)
    kv_publisher.close()


main()
