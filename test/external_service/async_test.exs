# SPDX-License-Identifier: Apache-2.0

defmodule ExternalService.AsyncTest do
  use ExternalService.Case, async: true

  alias ExternalService.{Deadline, DeadlineExceeded}

  defmodule Inbox do
    use ExternalService, retry: [max_attempts: 2, base: 0]
  end

  # Calls of every arity, whose function gives what `tell` says; all are one result each.
  defp everywhere(s, tell) do
    each = fn _element -> tell.() end

    [
      Task.await(ExternalService.call_async(s, tell)),
      Task.await(ExternalService.call_async(s, [max_attempts: 1], tell))
    ] ++
      for stream <- [
            ExternalService.call_async_stream([1], s, each),
            ExternalService.call_async_stream([1], s, [max_attempts: 1], each),
            ExternalService.call_async_stream([1], s, [max_concurrency: 1], each),
            ExternalService.call_async_stream([1], s, %RetryOptions{}, each),
            ExternalService.call_async_stream([1], s, nil, [], each)
          ],
          {:ok, told} <- stream,
          do: told
  end

  defp results(stream), do: Enum.to_list(stream)
  defp refusal(fun), do: fun |> raised() |> Exception.message()

  describe "call_async/2" do
    test "gives a task whose result is that of call/2", %{service: s} do
      ExternalService.start(s)
      assert %Task{} = task = ExternalService.call_async(s, fn -> {:ok, self()} end)
      pid = task.pid
      assert Task.await(task) == {:ok, pid}
    end

    test "gives refusals as call/2 does", %{service: s} do
      assert {:error, %ServiceNotStarted{}} = Task.await(ExternalService.call_async(s, fn -> 1 end))
      start_recording(s, retry: [max_attempts: 3])
      assert {:error, %RetriesExhausted{context: context}} = Task.await(ExternalService.call_async(s, fn -> :retry end))
      assert context == %{service: s, reason: :reason_unknown, attempts: 3}
    end

    test "is linked: an exception ends the caller, too", %{service: s} do
      Process.flag(:trap_exit, true)
      ExternalService.start(s)
      %Task{pid: pid} = ExternalService.call_async(s, fn -> raise KeyError, key: 1 end)
      assert_receive {:EXIT, ^pid, {%KeyError{}, _stacktrace}}, 10_000
    end
  end

  describe "call_async/3" do
    test "takes the options of call/3, as a list or a struct", %{service: s} do
      start_recording(s)

      for retry <- [[max_attempts: 2], %RetryOptions{max_attempts: 2}] do
        assert {:error, %{context: %{attempts: 2}}} = Task.await(ExternalService.call_async(s, retry, fn -> :retry end))
      end
    end

    test "raises in the caller for options that call/3 refuses, and starts no task", %{service: s} do
      ExternalService.start(s)
      fun = attempting(:fine)

      assert %ValidationError{key: :max_attempts} =
               raised(fn -> ExternalService.call_async(s, [max_attempts: 0], fun) end)

      assert %ValidationError{key: :cost} = raised(fn -> ExternalService.call_async(s, [cost: 0], fun) end)
      assert %ArgumentError{} = raised(fn -> ExternalService.call_async(s, [fallback: :no_such_function], fun) end)
      assert %ArgumentError{} = raised(fn -> ExternalService.call_async(s, [budget: true], fun) end)
      assert %ValidationError{key: :cap} = raised(fn -> ExternalService.call_async(s, %RetryOptions{cap: 0}, fun) end)
      assert %ValidationError{key: [:colour]} = raised(fn -> ExternalService.call_async(s, [colour: 1], fun) end)

      assert refusal(fn -> ExternalService.call_async(s, [1], fun) end) =~
               "expected a keyword list of options, got: [1]"

      assert attempts() == 0
    end
  end

  describe "call_async_stream/3" do
    test "gives the result for each element, in order", %{service: s} do
      ExternalService.start(s)
      assert results(ExternalService.call_async_stream(1..3, s, &(&1 * 2))) == [ok: 2, ok: 4, ok: 6]
    end

    test "gives errors among the results", %{service: s} do
      start_recording(s, retry: [max_attempts: 2])
      fun = fn n -> if n == 2, do: {:retry, :even}, else: {:ok, n} end

      assert [ok: {:ok, 1}, ok: {:error, %RetriesExhausted{context: %{reason: :even}}}, ok: {:ok, 3}] =
               results(ExternalService.call_async_stream(1..3, s, fun))
    end

    test "makes no call before the stream is asked", %{service: s} do
      ExternalService.start(s)
      fun = attempting(:done)
      stream = ExternalService.call_async_stream([1, 2], s, fn _ -> fun.() end)
      assert attempts() == 0
      assert results(stream) == [ok: :done, ok: :done]
      assert attempts() == 2
    end

    test "needs a function of the element", %{service: s} do
      assert_raise FunctionClauseError, fn -> ExternalService.call_async_stream([1], s, fn -> 1 end) end
    end
  end

  describe "call_async_stream/4" do
    test "takes a struct, or a list of options of the calls, for the calls", %{service: s} do
      start_recording(s)

      for retry <- [%RetryOptions{max_attempts: 2}, [max_attempts: 2], [max_attempts: 2, cost: 1]] do
        stream = ExternalService.call_async_stream([1], s, retry, fn _ -> :retry end)
        assert [ok: {:error, %RetriesExhausted{context: %{attempts: 2}}}] = results(stream)
      end
    end

    test "takes a list of the stream's options for the stream", %{service: s} do
      ExternalService.start(s)
      test = self()

      fun = fn n ->
        send(test, {:inside, self(), n})
        receive do: (:go -> n)
      end

      stream = ExternalService.call_async_stream(1..2, s, [max_concurrency: 1, ordered: false, timeout: :infinity], fun)
      reader = Task.async(fn -> results(stream) end)
      assert_receive {:inside, first, 1}, 10_000
      refute_received {:inside, _second, 2}
      send(first, :go)
      assert_receive {:inside, second, 2}, 10_000
      send(second, :go)
      assert Task.await(reader) == [ok: 1, ok: 2]
    end

    test "takes every option of Task.async_stream/3", %{service: s} do
      ExternalService.start(s)
      options = [max_concurrency: 2, ordered: true, timeout: 5_000, on_timeout: :kill_task, zip_input_on_exit: true]
      assert results(ExternalService.call_async_stream([1], s, options, & &1)) == [ok: 1]
      for option <- options, do: assert(results(ExternalService.call_async_stream([1], s, [option], & &1)) == [ok: 1])
    end

    test "takes an empty list as no options", %{service: s} do
      ExternalService.start(s)
      assert results(ExternalService.call_async_stream([1], s, [], & &1)) == [ok: 1]
    end

    test "hands :timeout to the stream, as it has always been", %{service: s} do
      ExternalService.start(s)
      options = [timeout: 1, on_timeout: :kill_task]
      stream = ExternalService.call_async_stream([1], s, options, fn _ -> receive(do: (:never -> :ok)) end)
      assert results(stream) == [exit: :timeout]
    end

    test "refuses a mix of both and says how to write it", %{service: s} do
      message =
        refusal(fn -> ExternalService.call_async_stream([1], s, [max_attempts: 1, max_concurrency: 2], & &1) end)

      assert message =~ "call_async_stream(enumerable, service, [max_attempts: 1], [max_concurrency: 2], fun)"
    end

    test "refuses unknown options by name, with the valid ones", %{service: s} do
      options = [colour: 1, max_attempts: 1, size: 2]
      error = raised(fn -> ExternalService.call_async_stream([1], s, options, & &1) end)
      assert %ArgumentError{message: message} = error
      assert message =~ "unknown options [:colour, :size], valid options are: [:max_concurrency, :ordered, :timeout"
      assert message =~ ":max_attempts"
      assert_raise ArgumentError, fn -> ExternalService.call_async_stream([1], s, [1], & &1) end
    end

    test "refuses wrong values of the calls' options before the stream is asked", %{service: s} do
      error = raised(fn -> ExternalService.call_async_stream([1], s, [max_attempts: 0], & &1) end)
      assert %ValidationError{key: :max_attempts} = error
    end
  end

  describe "call_async_stream/5" do
    test "takes options of the calls and of the stream apart", %{service: s} do
      start_recording(s)

      for retry <- [[max_attempts: 2], %RetryOptions{max_attempts: 2}] do
        stream = ExternalService.call_async_stream([1], s, retry, [max_concurrency: 1], fn _ -> :retry end)
        assert [ok: {:error, %RetriesExhausted{context: %{attempts: 2}}}] = results(stream)
      end
    end

    test "takes nil for the service's own options", %{service: s} do
      start_recording(s, retry: [max_attempts: 3])
      stream = ExternalService.call_async_stream([1], s, nil, [], fn _ -> :retry end)
      assert [ok: {:error, %RetriesExhausted{context: %{attempts: 3}}}] = results(stream)
    end

    test "refuses unknown options of either", %{service: s} do
      for {retry, async} <- [{[], [colour: 1]}, {[], [max_attempts: 1]}] do
        assert_raise ArgumentError, ~r/unknown options/, fn ->
          ExternalService.call_async_stream([1], s, retry, async, & &1)
        end
      end

      error = raised(fn -> ExternalService.call_async_stream([1], s, [max_concurrency: 1], [], & &1) end)
      assert %ValidationError{key: [:max_concurrency]} = error
    end
  end

  describe "what goes along to the tasks" do
    test "is the caller's deadline", %{service: s} do
      ExternalService.start(s)
      tell = fn -> Deadline.remaining() in 1..60_000 end
      assert Enum.uniq(Deadline.with_deadline(60_000, fn -> everywhere(s, tell) end)) == [true]
      assert Enum.uniq(everywhere(s, &Deadline.remaining/0)) == [:infinity]
    end

    test "is a deadline that is over: then no function runs", %{service: s} do
      ExternalService.start(s)
      outcomes = Deadline.with_deadline(0, fn -> everywhere(s, attempting(:done)) end)
      assert for({:error, %DeadlineExceeded{context: %{skipped: true}}} <- outcomes, do: :skipped) |> length() == 7
      assert attempts() == 0
    end

    test "is the deadline as it is when an element's turn comes", %{service: s} do
      clock = start_on_clock(s)
      wait = fn n -> VirtualClock.advance(clock, 40) && n end
      stream = fn -> results(ExternalService.call_async_stream(1..4, s, [max_concurrency: 1], wait)) end
      deadline = Deadline.sooner(nil, 100, VirtualClock.handle(clock))
      assert [ok: 1, ok: 2, ok: 3, ok: {:error, %DeadlineExceeded{}}] = Deadline.under(deadline, stream)
    end

    test "are the processes that called, with a timeout, too", %{service: s} do
      for options <- [[], [timeout: 60_000]] do
        ExternalService.start(s, options)
        test = self()
        tell = fn -> test in Process.get(:"$callers", []) end
        assert everywhere(s, tell) == List.duplicate(true, 7)
      end
    end
  end

  test "use ExternalService gives the module all of them, without the service" do
    on_exit(fn -> ExternalService.stop(Inbox) end)
    start_supervised!(Inbox)
    assert Task.await(Inbox.call_async(fn -> :fine end)) == :fine
    assert {:error, %{context: %{attempts: 1}}} = Task.await(Inbox.call_async([max_attempts: 1], fn -> :retry end))
    assert results(Inbox.call_async_stream([1], & &1)) == [ok: 1]
    assert results(Inbox.call_async_stream([1], [max_concurrency: 1], & &1)) == [ok: 1]

    for options <- [[[max_attempts: 1]], [[max_attempts: 1], [ordered: true]], [%RetryOptions{max_attempts: 1}]] do
      stream = apply(Inbox, :call_async_stream, [[1] | options] ++ [fn _ -> :retry end])
      assert [ok: {:error, %{context: %{attempts: 1}}}] = results(stream)
    end
  end
end
