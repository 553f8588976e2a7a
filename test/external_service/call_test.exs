# SPDX-License-Identifier: Apache-2.0

defmodule ExternalService.CallTest do
  use ExternalService.Case, async: true

  defmodule Flaky do
    defexception message: "flaky", status: nil
  end

  # Raises from a function of its own, so that a stacktrace can point at it.
  defmodule Remote do
    def fetch(exception) do
      _ = raise exception
      :unreachable
    end
  end

  defp melts, do: StandIn.count(:melt)

  # The calls here melt a stand-in, which counts, or nothing at all.
  defp start_counting(service, options \\ []) do
    {breaker, options} = Keyword.pop(options, :circuit_breaker, [])
    breaker = Keyword.put_new(breaker, :backend, StandIn.backend())
    start_recording(service, [circuit_breaker: breaker] ++ options)
  end

  describe "what a function returns" do
    test "every value but :retry and {:retry, reason} is a success and comes back as it is", %{service: s} do
      start_counting(s)

      for value <- [{:error, :down}, {:ok, 1}, :error, nil, false, {:retry, 1, 2}, {:retry}, [:retry], "retry"] do
        assert ExternalService.call(s, attempting(value)) === value
        assert attempts() == 1
      end

      assert melts() == 0
    end

    test ":retry is tried again until max_attempts, with :reason_unknown as the reason", %{service: s} do
      start_counting(s)
      assert {:error, %RetriesExhausted{context: context}} = ExternalService.call(s, attempting(:retry))
      assert %{service: ^s, reason: :reason_unknown, attempts: 5} = context
      assert attempts() == 5
    end

    test "{:retry, reason} is tried again and its reason is in the error", %{service: s} do
      start_counting(s)
      result = ExternalService.call(s, [max_attempts: 3], attempting({:retry, {:status, 503}}))
      assert {:error, %RetriesExhausted{context: %{reason: {:status, 503}, attempts: 3}}} = result
      assert attempts() == 3
    end

    test "the last attempt's reason is the one in the error", %{service: s} do
      start_counting(s)
      fun = attempting_each([{:retry, 1}, {:retry, 2}, {:retry, 3}])
      assert {:error, %RetriesExhausted{context: %{reason: 3}}} = ExternalService.call(s, [max_attempts: 3], fun)
    end

    test "a success after failures ends the call with its value", %{service: s} do
      start_counting(s)
      assert ExternalService.call(s, attempting_each([:retry, {:retry, 1}, {:ok, :done}])) == {:ok, :done}
      assert attempts() == 3
      assert melts() == 2
    end

    test "an exception as a reason is the error's cause", %{service: s} do
      start_counting(s)
      reason = %Flaky{message: "busy"}
      assert {:error, error} = ExternalService.call(s, [max_attempts: 1], fn -> {:retry, reason} end)
      assert error.context.reason == reason
      assert %{kind: :error, value: ^reason, stacktrace: nil} = error.cause
    end

    test "a reason that is no exception is no cause", %{service: s} do
      start_counting(s)
      assert {:error, %RetriesExhausted{cause: nil}} = ExternalService.call(s, fn -> {:retry, :busy} end)
    end
  end

  describe "retry_on" do
    test "a value it matches is retried as {:retry, value} would be, and is the reason", %{service: s} do
      start_counting(s, retry: [retry_on: &match?({:error, %{status: n}} when n in 500..599, &1)])
      Recorder.attach(s, [[:call, :retry]])

      result = ExternalService.call(s, [max_attempts: 2], attempting({:error, %{status: 502}}))
      assert {:error, %RetriesExhausted{context: %{reason: {:error, %{status: 502}}}}} = result
      assert attempts() == 2
      assert melts() == 2

      assert [{_, _, %{reason: {:error, %{status: 502}}}}, {_, _, %{reason: {:error, %{status: 502}}}}] =
               Recorder.events()
    end

    test "a value it does not match is a success", %{service: s} do
      start_counting(s, retry: [retry_on: &match?({:error, %{status: 502}}, &1)])
      assert ExternalService.call(s, attempting({:error, %{status: 404}})) == {:error, %{status: 404}}
      assert {attempts(), melts()} == {1, 0}
    end

    test "any truthy answer matches, nil and false do not", %{service: s} do
      start_counting(s)
      call = fn answer -> ExternalService.call(s, [max_attempts: 2, retry_on: fn _ -> answer end], fn -> :value end) end

      assert {:error, %RetriesExhausted{}} = call.(:yes)
      assert {:error, %RetriesExhausted{}} = call.([])
      assert call.(nil) == :value
      assert call.(false) == :value
    end

    test "an explicit :retry or {:retry, reason} goes before it", %{service: s} do
      pid = self()
      start_counting(s, retry: [max_attempts: 2, retry_on: &send(pid, {:asked, &1})])

      assert {:error, %{context: %{reason: :reason_unknown}}} = ExternalService.call(s, fn -> :retry end)
      assert {:error, %{context: %{reason: :mine}}} = ExternalService.call(s, fn -> {:retry, :mine} end)
      refute_received {:asked, _}
    end

    test "it is asked in the caller's process", %{service: s} do
      pid = self()
      start_counting(s)
      ExternalService.call(s, [retry_on: fn _ -> send(pid, {:asked_in, self()}) && false end], fn -> 1 end)
      assert_received {:asked_in, ^pid}
    end

    test "one that fails matches nothing and logs a warning", %{service: s} do
      start_counting(s)

      for fail <- [fn _ -> raise "oops" end, fn _ -> throw(:oops) end, fn _ -> exit(:oops) end] do
        log =
          capture_log(fn ->
            assert ExternalService.call(s, [retry_on: fail], attempting({:error, 1})) == {:error, 1}
          end)

        assert log =~
                 "The :retry_on predicate for #{inspect(s)} did not return, so the call was treated as not retriable"

        assert log =~ "oops"
        assert log =~ "[warn"
      end

      assert {attempts(), melts()} == {3, 0}
    end
  end

  describe "retry_exceptions" do
    test "no exception is retried by default: it propagates untouched and leaves the breaker alone", %{service: s} do
      start_counting(s)
      Recorder.attach(s, [[:call, :retry]])

      raised =
        assert_raise Flaky, fn ->
          ExternalService.call(s, attempting(fn -> raise Flaky, message: "no", status: 1 end))
        end

      assert raised == %Flaky{message: "no", status: 1}
      assert {attempts(), melts(), Recorder.names()} == {1, 0, []}
    end

    test "a listed exception is retried and melts the breaker", %{service: s} do
      start_counting(s, retry: [retry_exceptions: [Flaky]])
      fun = attempting_each([fn -> raise Flaky end, fn -> raise Flaky end, :fine])
      assert ExternalService.call(s, fun) == :fine
      assert {attempts(), melts()} == {3, 2}
    end

    test "an exception not in the list propagates from whichever attempt raises it", %{service: s} do
      start_counting(s, retry: [retry_exceptions: [Flaky]])
      fun = attempting_each([fn -> raise Flaky end, fn -> raise KeyError, key: :a end])

      assert_raise KeyError, fn -> ExternalService.call(s, fun) end
      assert {attempts(), melts()} == {2, 1}
    end

    test "Erlang's own errors are matched by their Elixir exceptions", %{service: s} do
      start_counting(s)

      assert_raise ArithmeticError, fn ->
        ExternalService.call(
          s,
          [max_attempts: 2, retry_exceptions: [ArithmeticError]],
          attempting(fn -> div(1, Process.get(:nothing, 0)) end)
        )
      end

      assert_raise ErlangError, fn ->
        ExternalService.call(
          s,
          [max_attempts: 3, retry_exceptions: [ErlangError]],
          attempting(fn -> :erlang.error(:odd) end)
        )
      end

      assert {attempts(), melts()} == {5, 5}
    end

    test "when retries run out the original exception is raised again, from where it was raised", %{service: s} do
      start_counting(s, retry: [max_attempts: 3, retry_exceptions: [Flaky]])
      exception = %Flaky{message: "still down", status: 500}

      {raised, stacktrace} =
        try do
          ExternalService.call(s, attempting(fn -> Remote.fetch(exception) end))
        rescue
          error -> {error, __STACKTRACE__}
        end

      assert raised == exception
      assert [{Remote, :fetch, 1, location} | _] = stacktrace
      assert Path.basename(location[:file]) == "call_test.exs"
      assert {attempts(), melts()} == {3, 3}
    end

    test "an unlisted exception keeps its stacktrace", %{service: s} do
      start_counting(s)

      for exceptions <- [[], [KeyError], fn _ -> false end] do
        stacktrace =
          try do
            ExternalService.call(s, [retry_exceptions: exceptions], fn -> Remote.fetch(%Flaky{}) end)
          rescue
            Flaky -> __STACKTRACE__
          end

        assert [{Remote, :fetch, 1, _} | _] = stacktrace
      end
    end

    test "the last attempt decides whether an exhausted call returns an error or raises", %{service: s} do
      start_counting(s, retry: [max_attempts: 2, retry_exceptions: [Flaky]])
      raise_flaky = fn -> raise Flaky end
      assert {:error, %RetriesExhausted{}} = ExternalService.call(s, attempting_each([raise_flaky, :retry]))
      assert_raise Flaky, fn -> ExternalService.call(s, attempting_each([:retry, raise_flaky])) end
    end

    test "retry_on looks at the value that follows an exception", %{service: s} do
      start_counting(s, retry: [max_attempts: 3, retry_exceptions: [Flaky], retry_on: &(&1 == :busy)])
      assert ExternalService.call(s, attempting_each([fn -> raise Flaky end, :busy, :fine])) == :fine
      assert {attempts(), melts()} == {3, 2}
    end

    test "a predicate decides on the exception itself", %{service: s} do
      start_counting(s,
        retry: [
          max_attempts: 2,
          retry_exceptions: fn
            %Flaky{status: status} -> status >= 500
            _other -> false
          end
        ]
      )

      assert_raise Flaky, fn -> ExternalService.call(s, attempting(fn -> raise Flaky, status: 503 end)) end
      assert {attempts(), melts()} == {2, 2}
      assert_raise Flaky, fn -> ExternalService.call(s, attempting(fn -> raise Flaky, status: 404 end)) end
      assert_raise KeyError, fn -> ExternalService.call(s, attempting(fn -> raise KeyError end)) end
      assert {attempts(), melts()} == {2, 0}
    end

    test "any truthy answer of the predicate retries", %{service: s} do
      start_counting(s)
      raising = attempting(fn -> raise Flaky end)

      call = fn answer ->
        catch_error(ExternalService.call(s, [max_attempts: 2, retry_exceptions: fn _ -> answer end], raising))
      end

      assert {%Flaky{}, 2} = {call.(:yes), attempts()}
      assert {%Flaky{}, 1} = {call.(nil), attempts()}
    end

    test "a predicate that fails lets the exception through untouched and logs a warning", %{service: s} do
      start_counting(s)

      for fail <- [fn _ -> raise "oops" end, fn _ -> throw(:oops) end, fn _ -> exit(:oops) end] do
        log =
          capture_log(fn ->
            assert_raise Flaky, fn ->
              ExternalService.call(s, [retry_exceptions: fail], attempting(fn -> raise Flaky end))
            end
          end)

        assert log =~
                 "The :retry_exceptions predicate for #{inspect(s)} did not return, so the call was treated as not retriable"

        assert log =~ "oops"
      end

      assert {attempts(), melts()} == {3, 0}
    end

    test "its exceptions are the reason in the retry event", %{service: s} do
      start_counting(s)
      Recorder.attach(s, [[:call, :retry]])

      catch_error(
        ExternalService.call(s, [max_attempts: 1, retry_exceptions: [Flaky]], fn -> raise Flaky, status: 7 end)
      )

      assert [{[:call, :retry], %{count: 1}, %{reason: %Flaky{status: 7}}}] = Recorder.events()
    end
  end

  describe "throw and exit" do
    test "are not retried, do not melt, and reach the caller as they are", %{service: s} do
      start_counting(s, retry: [retry_exceptions: fn _ -> true end])

      for thrown <- [:ball, :blown, :saturated, {:rate_limited, 5}, {:retry, 1}] do
        assert catch_throw(ExternalService.call(s, attempting(fn -> throw(thrown) end))) == thrown
      end

      assert catch_exit(ExternalService.call(s, attempting(fn -> exit(:shutdown) end))) == :shutdown
      assert {attempts(), melts()} == {6, 0}
    end
  end

  describe "retry options of a call" do
    test "call/2 uses the service's own", %{service: s} do
      start_counting(s, retry: [max_attempts: 2, base: 7])
      ExternalService.call(s, attempting(:retry))
      assert {attempts(), slept()} == {2, [7]}
    end

    test "a keyword list overrides the listed keys only", %{service: s} do
      start_counting(s, retry: [max_attempts: 3, base: 7])
      ExternalService.call(s, [max_attempts: 4], fn -> :retry end)
      assert slept() == [7, 14, 28]
      ExternalService.call(s, [base: 5], fn -> :retry end)
      assert slept() == [5, 10]
      ExternalService.call(s, [], fn -> :retry end)
      assert slept() == [7, 14]
    end

    test "a struct replaces all of them", %{service: s} do
      start_counting(s, retry: [max_attempts: 3, base: 7, retry_on: fn _ -> true end])
      ExternalService.call(s, %RetryOptions{max_attempts: 2}, fn -> :retry end)
      assert slept() == [10]
      assert ExternalService.call(s, %RetryOptions{}, fn -> :value end) == :value
    end

    test "are checked before anything else: no event, no attempt, even for a service never started", %{service: s} do
      Recorder.attach(s)

      log =
        capture_log(fn ->
          assert_raise ValidationError, ~r/:max_attempts/, fn ->
            ExternalService.call(s, [max_attempts: 0], attempting(1))
          end
        end)

      refute log =~ inspect(s)
      assert {attempts(), Recorder.names()} == {0, []}
    end

    test "must be a keyword list or a struct of them, and the function a function", %{service: s} do
      start_counting(s)

      for wrong <- [5, %{max_attempts: 1}, nil, "1"] do
        assert_raise FunctionClauseError, fn -> ExternalService.call(s, wrong, attempting(1)) end
      end

      assert_raise FunctionClauseError, fn -> ExternalService.call(s, :not_a_function) end
      assert_raise FunctionClauseError, fn -> ExternalService.call!(s, :not_a_function) end
      assert attempts() == 0
    end

    test "a struct made by hand with impossible values raises", %{service: s} do
      start_counting(s)

      for bad <- [
            %{base: -1},
            %{base: 1.5},
            %{cap: 0},
            %{max_attempts: -1},
            %{jitter: 7.0},
            %{backoff: :cubic},
            %{expiry: "1"}
          ] do
        assert is_exception(raised(fn -> ExternalService.call(s, struct(RetryOptions, bad), fn -> :retry end) end))
      end
    end
  end

  describe "a service that was not started" do
    test "gives ServiceNotStarted and one log line per call", %{service: s} do
      line =
        "Service #{inspect(s)} has not been started. To initialize it, call ExternalService.start(#{inspect(s)}) in your application start code."

      log =
        capture_log(fn ->
          assert {:error, %ServiceNotStarted{context: %{service: ^s}}} = ExternalService.call(s, attempting(1))
          assert_raise ServiceNotStarted, fn -> ExternalService.call!(s, attempting(1)) end
        end)

      assert log |> String.split(line) |> length() == 3
      assert log =~ "[error]"
      assert attempts() == 0
    end

    test "emits start and stop, with the error as the result", %{service: s} do
      Recorder.attach(s)
      capture_log(fn -> ExternalService.call(s, fn -> 1 end) end)

      assert [{[:call, :start], _, _}, {[:call, :stop], _, %{result: {:error, %ServiceNotStarted{}}}}] =
               Recorder.events()
    end
  end

  describe "an open breaker" do
    test "ends the call at once with CircuitBreakerOpen and no attempt", %{service: s} do
      switch = StandIn.switch()
      start_counting(s, circuit_breaker: [backend: StandIn.backend(blown: switch)])
      StandIn.blow(switch)

      assert {:error, %CircuitBreakerOpen{context: %{service: ^s}}} = ExternalService.call(s, attempting(:retry))
      assert {attempts(), slept(), melts(), StandIn.count(:ask)} == {0, [], 0, 1}
      assert_raise CircuitBreakerOpen, fn -> ExternalService.call!(s, attempting(:retry)) end
    end

    test "opened by others between attempts, ends the call without a melt of its own", %{service: s} do
      switch = StandIn.switch()
      open = fn _ms -> StandIn.blow(switch) end

      start_counting(s,
        sleep_function: open,
        circuit_breaker: [melt: :per_call, backend: StandIn.backend(blown: switch)]
      )

      assert {:error, %CircuitBreakerOpen{}} = ExternalService.call(s, attempting(:retry))
      assert {attempts(), melts()} == {1, 0}
    end

    test "opened by others between attempts: the failed attempt has melted, the refused one does not", %{service: s} do
      switch = StandIn.switch()
      open = fn _ms -> StandIn.blow(switch) end

      start_counting(s, sleep_function: open, circuit_breaker: [backend: StandIn.backend(blown: switch)])
      assert {:error, %CircuitBreakerOpen{}} = ExternalService.call(s, attempting(:retry))
      assert {attempts(), melts()} == {1, 1}
    end

    test "opened by the call's own failures ends it part-way through its retries", %{service: s} do
      start_recording(s, circuit_breaker: [tolerate: 2])
      assert {:error, %CircuitBreakerOpen{}} = ExternalService.call(s, [max_attempts: 10], attempting(:retry))
      assert attempts() == 3
    end

    test "opened by the call's last attempt still gives RetriesExhausted", %{service: s} do
      start_recording(s, circuit_breaker: [tolerate: 2])
      assert {:error, %RetriesExhausted{}} = ExternalService.call(s, [max_attempts: 3], attempting(:retry))
      assert ExternalService.blown?(s)
    end

    test "of a service started afresh between attempts is the one the next attempt asks", %{service: s} do
      switch = StandIn.switch()
      StandIn.blow(switch)
      backend = StandIn.backend(blown: switch)
      start_recording(s, sleep_function: fn _ -> ExternalService.start(s, circuit_breaker: [backend: backend]) end)
      assert {:error, %CircuitBreakerOpen{}} = ExternalService.call(s, attempting(:retry))
      assert attempts() == 1
    end

    test "by stop/1 during a call, refuses the next attempt", %{service: s} do
      start_recording(s)
      Recorder.attach(s, [[:circuit_breaker, :blown]])
      stop = attempting(fn -> ExternalService.stop(s) && :retry end)

      assert {:error, %CircuitBreakerOpen{}} = ExternalService.call(s, stop)
      assert attempts() == 1
      assert Recorder.names() == [[:circuit_breaker, :blown]]
    end

    test "by stop/1 during a call that succeeds, harms nothing", %{service: s} do
      start_recording(s)
      assert ExternalService.call(s, fn -> ExternalService.stop(s) && :fine end) == :fine
    end
  end

  describe "melt" do
    test ":per_attempt, the default, melts for every failing attempt", %{service: s} do
      start_counting(s)
      ExternalService.call(s, attempting(:retry))
      assert {attempts(), melts()} == {5, 5}
    end

    test ":per_call melts once for a call that gives up", %{service: s} do
      start_counting(s, circuit_breaker: [melt: :per_call])
      ExternalService.call(s, attempting(:retry))
      assert {attempts(), melts()} == {5, 1}

      catch_error(ExternalService.call(s, [retry_exceptions: [Flaky]], attempting(fn -> raise Flaky end)))
      assert {attempts(), melts()} == {5, 1}
    end

    test ":per_call does not melt for a call that succeeds in the end or raises what is not retried", %{service: s} do
      start_counting(s, circuit_breaker: [melt: :per_call])
      assert ExternalService.call(s, attempting_each([:retry, :retry, :fine])) == :fine
      fun = attempting_each([:retry, fn -> raise Flaky end])
      assert_raise Flaky, fn -> ExternalService.call(s, fun) end
      assert {attempts(), melts()} == {5, 0}
    end

    test ":per_call with tolerate: 1 opens on the second call that gives up", %{service: s} do
      start_recording(s, circuit_breaker: [melt: :per_call, tolerate: 1])
      assert {:error, %RetriesExhausted{}} = ExternalService.call(s, attempting(:retry))
      assert ExternalService.state(s) == :closed
      assert {:error, %RetriesExhausted{}} = ExternalService.call(s, attempting(:retry))
      assert ExternalService.state(s) == :open
      assert attempts() == 10
    end

    test ":per_call needs a bound on the retries of every call", %{service: s} do
      start_counting(s, circuit_breaker: [melt: :per_call])
      Recorder.attach(s)

      assert_raise ArgumentError, ~r/never give up/, fn ->
        ExternalService.call(s, [max_attempts: :infinity], attempting_each([:retry, :retry, :fine]))
      end

      assert attempts() == 0
      assert Recorder.names() == [[:call, :start], [:call, :exception]]
      assert ExternalService.call(s, [max_attempts: :infinity, expiry: 10], attempting(1)) == 1
    end
  end

  describe "nested calls" do
    test "are independent: an inner error is a success of the outer call", %{service: s} do
      start_counting(s, retry: [max_attempts: 2])
      outer = attempting(fn -> ExternalService.call(s, fn -> :retry end) end)
      assert {:error, %RetriesExhausted{context: %{attempts: 2}}} = ExternalService.call(s, outer)
      assert {attempts(), melts()} == {1, 2}
    end

    test "an inner call! can be retried by the outer through retry_exceptions", %{service: s} do
      start_counting(s)
      outer = attempting(fn -> ExternalService.call!(s, [max_attempts: 1], fn -> {:retry, :inner} end) end)

      raised =
        assert_raise RetriesExhausted, fn ->
          ExternalService.call(s, [max_attempts: 3, retry_exceptions: [RetriesExhausted]], outer)
        end

      assert raised.context.reason == :inner
      assert {attempts(), melts()} == {3, 6}
    end

    test "keep their own retry counts", %{service: s} do
      start_counting(s)
      inner = attempting_each([:retry, :fine, :retry, :fine])

      outer = fn ->
        :fine = ExternalService.call(s, [max_attempts: 2], inner)
        :retry
      end

      assert {:error, %RetriesExhausted{context: %{attempts: 2}}} = ExternalService.call(s, [max_attempts: 2], outer)
      assert attempts() == 4
    end
  end

  describe "call!" do
    test "gives the result of a success, {:error, _} included", %{service: s} do
      start_counting(s)
      assert ExternalService.call!(s, fn -> :fine end) == :fine
      assert ExternalService.call!(s, fn -> {:error, :mine} end) == {:error, :mine}

      assert ExternalService.call!(s, [max_attempts: 1], fn -> {:error, %RuntimeError{}} end) ==
               {:error, %RuntimeError{}}
    end

    test "raises the error that call would return", %{service: s} do
      start_counting(s)

      error =
        assert_raise RetriesExhausted, fn -> ExternalService.call!(s, [max_attempts: 2], fn -> {:retry, 9} end) end

      assert {:error, returned} = ExternalService.call(s, [max_attempts: 2], fn -> {:retry, 9} end)
      assert {error.__struct__, error.context} == {returned.__struct__, returned.context}
      assert error.context == %{service: s, reason: 9, attempts: 2}
    end

    test "and call leave nothing in the caller's mailbox or dictionary", %{service: s} do
      ExternalService.start(s, retry: [base: 0], circuit_breaker: [tolerate: 3])
      dictionary = Process.get()
      ExternalService.call(s, fn -> :fine end)
      catch_throw(ExternalService.call(s, fn -> throw(:ball) end))
      ExternalService.call(s, fn -> :retry end)
      raised(fn -> ExternalService.call!(s, fn -> :fine end) end)
      assert Process.info(self(), :message_queue_len) == {:message_queue_len, 0}
      assert Process.get() == dictionary
    end

    test "raises an exhausted exception itself", %{service: s} do
      start_counting(s)

      assert_raise Flaky, fn ->
        ExternalService.call!(s, [retry_exceptions: [Flaky]], attempting(fn -> raise Flaky end))
      end

      assert attempts() == 5
    end
  end
end
