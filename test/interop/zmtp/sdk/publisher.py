"""Publishes what the lines on standard input say, with the publisher of sdk/python.

The arguments are JSON: the publisher's. Each line is the name of a method and its arguments, JSON; the answer is a line.
"""

import json
import sys

from penstock import CxlMemoryMetadata, KvEventPublisher, MoeMetadata, StoredBlock


def main() -> None:
    kv_publisher = KvEventPublisher(**json.loads(sys.argv[1]))
    print(json.dumps([kv_publisher.endpoint, kv_publisher.replay_endpoint]), flush=True)
    for event_id, line in enumerate(sys.stdin):
        method, arguments = json.loads(line)
        if method == "stored":
            blocks = [StoredBlock(*block) for block in arguments.pop("blocks")]
            for stored_block in blocks:
                if stored_block.moe_metadata is not None:
                    stored_block.moe_metadata = MoeMetadata(*stored_block.moe_metadata)
                # As in the guide of the router, "Backend integration":
                stored_block.cxl_metadata = CxlMemoryMetadata(
                    state="local_gpu",
                    pool_id=None,
                    accessible_workers=[]
                )
            kv_publisher.publish_stored(event_id, blocks, **arguments)
        elif method == "removed":
            kv_publisher.publish_removed(event_id, **arguments)
        elif method == "cleared":
            kv_publisher.publish_all_cleared(event_id)
        elif method == "to the pool":
            prefill_block_hashes, cxl_pool_id, decode_worker_1_id, decode_worker_2_id = arguments
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
        else:
            kv_publisher.publish_cxl_state_transition(event_id, **arguments)
        print("done", flush=True)


main()
