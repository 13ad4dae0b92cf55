"""What SageMaker says of a training job: status messages, and reasons that are not the job's own."""

STATUS_MESSAGES = {
    "Starting": "Preparing the instances for training",
    "Downloading": "Downloading input data",
    "Training": "Training image download completed. Training in progress.",
    "Uploading": "Uploading generated training model",
    "Interrupted": "Training job interrupted: its spot instance was taken back",
    "Stopping": "Stopping the training job",
    "Completed": "Training job completed",
    "Stopped": "Training job stopped",
    "MaxRuntimeExceeded": "Training job runtime exceeded MaxRuntimeInSeconds",
    "MaxWaitTimeExceeded": "Training job wait time exceeded MaxWaitTimeInSeconds",
}

# Its words ("Common errors", developer guide).
WAITING_FOR_CAPACITY = "Insufficient capacity error from EC2 while launching instances, retrying!"
NO_CAPACITY = (
    "CapacityError: Unable to provision requested ML compute capacity. Please retry using a "
    "different ML instance type."
)
HOST_LOST = "InternalServerError: We encountered an internal error. Please try again."
