"""The tasks that the suite names. Its source package has none of them."""

from foqs_client.django.task_classes import task


@task()
def noop_task(*args, **kwargs):
    pass


@task()
async def noop_task_async(*args, **kwargs):
    pass


@task()
def calculate_meaning_of_life():
    return 42


@task()
def failing_task_value_error():
    raise ValueError("This task failed due to ValueError")


@task()
def complex_exception():
    raise ValueError(ValueError("This task failed"))


@task()
def complex_return_value():
    return complex_return_value


@task()
def exit_task():
    raise SystemExit(1)


@task(takes_context=True)
def get_task_id(context):
    return context.task_result.id


@task(takes_context=True)
def test_context(context, attempt):
    assert context.attempt == context.task_result.attempts == attempt
