# SPDX-License-Identifier: Apache-2.0

defmodule ExternalService.ConfigCheck.FindingsTest do
  use ExternalService.Case, async: true

  import ExternalService.ConfigCheck, only: [findings: 2]

  defp found(options), do: for(%{check: check} <- findings(:mail, options), do: check)

  defp message(check, options) do
    assert [message] = for(%{check: ^check, message: message} <- findings(:mail, options), do: message)
    message
  end

  # Every `option: ...` that a message shows in backquotes, merged over the options it is about.
  defp following(message, options) do
    [advice | _other] = for [_, code] <- Regex.scan(~r/`((?:retry|circuit_breaker): \[.*?\])`/, message), do: code
    {advised, _binding} = Code.eval_string("[#{advice}]")
    ExternalService.Options.merge(options, advised)
  end

  test "nothing is suspicious about the defaults" do
    assert found([]) == []
  end

  describe "uncapped_backoff" do
    test "is found from seven attempts on" do
      assert found(retry: [max_attempts: 6]) == []
      assert found(retry: [max_attempts: 7]) == [:uncapped_backoff]
      assert found(retry: [max_attempts: 7, cap: 1_000]) == []
      assert found(retry: [max_attempts: 7, backoff: :linear]) == []
      assert found(retry: [max_attempts: 7, base: 0]) == []
      assert found(retry: [max_attempts: :infinity, expiry: 1_000]) == []
    end

    test "tells the times of a call, and its advice helps" do
      options = [retry: [max_attempts: 10, base: 100]]
      message = message(:uncapped_backoff, options)
      assert message =~ ~r/^:mail .*uncapped exponential backoff.* 51\.1s .* 25\.6s /
      assert :uncapped_backoff not in found(following(message, options))
    end

    test "is told of a schedule longer than any clock" do
      assert message(:uncapped_backoff, retry: [max_attempts: 1_000_000]) =~ "unbounded"
    end
  end

  describe "self_tripping_call" do
    test "is found where the attempts of one call are too many" do
      assert found(circuit_breaker: [tolerate: 5]) == []
      assert found(circuit_breaker: [tolerate: 4]) == [:self_tripping_call]
      assert found(circuit_breaker: [tolerate: 4, melt: :per_call]) == []
      assert found(circuit_breaker: [tolerate: :infinity]) == []
      assert found(circuit_breaker: [tolerate: 4], retry: [max_attempts: 4]) == []
    end

    test "goes by the attempts that one of several endpoints gets" do
      breaker = [circuit_breaker: [consecutive: 3]]
      assert found([endpoints: ["a", "b"], retry: [max_attempts: 4]] ++ breaker) == []
      assert found([endpoints: ["a", "b"], retry: [max_attempts: 5]] ++ breaker) == [:self_tripping_call]
      assert found([endpoints: ["a"], retry: [max_attempts: 3]] ++ breaker) == [:self_tripping_call]
      assert found([endpoints: fn -> ["a", "b"] end, retry: [max_attempts: 5]] ++ breaker) == []
    end

    test "is found of failures in a row, too" do
      assert found(circuit_breaker: [consecutive: 6]) == []
      assert found(circuit_breaker: [consecutive: 5]) == [:self_tripping_call]
      assert found(circuit_breaker: [consecutive: 5, melt: :per_call]) == []
      assert found(circuit_breaker: [tolerate: 1, consecutive: 1]) == [:self_tripping_call]
    end

    test "advises what is not found again" do
      for breaker <- [[tolerate: 2], [consecutive: 2]] do
        options = [circuit_breaker: breaker]
        message = message(:self_tripping_call, options)
        assert message =~ ~r/^:mail .*single failing call/
        assert found(following(message, options)) == []
      end
    end
  end

  describe "unbounded_retrying" do
    test "is found where neither attempts nor time bound a call" do
      assert found(retry: [max_attempts: :infinity]) == [:unbounded_retrying]
      assert found(retry: [max_attempts: :infinity, expiry: :infinity]) == [:unbounded_retrying]
      assert found(retry: [max_attempts: :infinity, expiry: 1]) == []
      assert found(retry: [max_attempts: :infinity], circuit_breaker: [melt: :per_call]) == []
      assert found(retry: [max_attempts: :infinity], deadline: 5_000) == []
    end

    test "advises what is not found again" do
      options = [retry: [max_attempts: :infinity]]
      assert found(following(message(:unbounded_retrying, options), options)) == []
    end
  end

  describe "narrow_window" do
    test "is found where the failures it takes do not fit into it" do
      # Eleven failures take three calls of 1.5 s.
      assert found(circuit_breaker: [within: 4_500], retry: [base: 100]) == []
      assert found(circuit_breaker: [within: 4_499], retry: [base: 100]) == [:narrow_window]
      assert found(circuit_breaker: [within: 14_999, melt: :per_call], retry: [base: 100]) == [:narrow_window]
      assert found(circuit_breaker: [within: 15_000, melt: :per_call], retry: [base: 100]) == []
    end

    test "is not found where there is nothing to be too narrow for" do
      assert found(circuit_breaker: [within: :auto], retry: [base: 60_000]) == []
      assert found(circuit_breaker: [within: 1, tolerate: :infinity], retry: [base: 100]) == []
      assert found(circuit_breaker: [within: 1], retry: [max_attempts: 1]) == []
      assert found(circuit_breaker: [within: 1], retry: [max_attempts: :infinity]) == [:unbounded_retrying]
    end

    test "is not told beside an uncapped backoff, which makes it" do
      assert found(circuit_breaker: [within: 1], retry: [max_attempts: 8]) == [:uncapped_backoff]
    end

    test "is found in a window that is a backend's own option" do
      backend = {ExternalService.CircuitBreaker.Local, within: 4_499}
      assert found(circuit_breaker: [backend: backend], retry: [base: 100]) == [:narrow_window]
    end

    test "tells the calls and their time, and its advice helps" do
      options = [circuit_breaker: [within: 1_000], retry: [base: 1_000]]
      message = message(:narrow_window, options)
      assert message =~ "narrower than the failures it has to count: 3 failing calls take 45s"
      assert message =~ "within: :timer.seconds(90)"
      assert found(following(message, options)) == []
    end

    test "tells of one call where one is enough" do
      options = [circuit_breaker: [within: 1_000, tolerate: 4], retry: [base: 1_000, max_attempts: 5]]
      assert message(:narrow_window, options) =~ "one failing call takes 15s"
    end
  end

  describe "factor_of_old" do
    test "is found of a factor that looks like milliseconds" do
      assert found(retry: [backoff: :linear, factor: 9]) == []
      assert found(retry: [backoff: :linear, factor: 10]) == [:factor_of_old]
      assert found(retry: [factor: 10]) == []
    end

    test "tells the delays there are, and how to get the others" do
      message = message(:factor_of_old, retry: [backoff: :linear, base: 100, factor: 50])
      assert message =~ "100ms, 5.1s, 10.1s"
      assert message =~ "`retry: [increment: 50]`"
    end

    test "is not told to who gives an increment" do
      assert found(retry: [backoff: :linear, factor: 10, increment: 5]) == []
    end
  end

  describe "unreachable_half_open" do
    test "is found where a good probe may come back too late" do
      slow = [consecutive: 9, slow_call: 2_000]
      assert found(circuit_breaker: slow ++ [half_open: true, reset: 1_999]) == [:unreachable_half_open]
      assert found(circuit_breaker: slow ++ [half_open: true, reset: 2_000]) == []
      assert found(circuit_breaker: slow ++ [half_open: [lease: 1_999]]) == [:unreachable_half_open]
      assert found(circuit_breaker: slow ++ [half_open: false, reset: 1]) == []
      assert found(circuit_breaker: slow ++ [half_open: true, reset: 0]) == []
      assert found(circuit_breaker: [half_open: true, reset: 1_000], timeout: 1_001) == [:unreachable_half_open]
      assert found(circuit_breaker: [half_open: true, reset: 1_000], timeout: 1_000) == []
    end

    test "advises what is not found again" do
      options = [circuit_breaker: [half_open: [probes: 2], reset: 1, slow_call: 500]]
      assert found(following(message(:unreachable_half_open, options), options)) == []
    end
  end

  describe "unreachable_min_calls" do
    test "is found where the window never holds so many, which does not start either" do
      for {breaker, found} <- [
            {[failure_rate: 0.5, window: {:calls, 19}], [:unreachable_min_calls]},
            {[slow_call: 5, window: {:calls, 4}, min_calls: 5], [:unreachable_min_calls]},
            {[failure_rate: 0.5, window: {:calls, 20}], []},
            {[failure_rate: 0.5, window: {:time, 1}], []},
            {[window: {:calls, 1}], []}
          ] do
        assert {breaker, found(circuit_breaker: breaker)} == {breaker, found}
      end
    end

    test "advises what is not found again" do
      options = [circuit_breaker: [failure_rate: 0.5, window: {:calls, 7}]]
      assert found(following(message(:unreachable_min_calls, options), options)) == []
    end
  end

  describe "idle_reset_backoff" do
    test "is found without probes that could fail" do
      assert found(circuit_breaker: [reset_backoff: [max: 90_000]]) == [:idle_reset_backoff]
      assert found(circuit_breaker: [reset_backoff: [max: 90_000], half_open: true]) == []
    end
  end

  describe "attempts_beyond_deadline" do
    test "is found where all attempts and the waits between them take longer than the whole call may" do
      options = [retry: [base: 100], timeout: 1_000]
      assert found([deadline: 6_500] ++ options) == []
      assert found([deadline: 6_499] ++ options) == [:attempts_beyond_deadline]
      assert found(deadline: 1_499, retry: [base: 100]) == [:attempts_beyond_deadline]
      assert found(deadline: :infinity, timeout: 60_000) == []
      assert found(timeout: 60_000) == []
    end

    test "advises a deadline that is not found again" do
      options = [retry: [base: 100], timeout: 1_000, deadline: 10]
      message = message(:attempts_beyond_deadline, options)
      assert message =~ "5 attempts may take 6.5s"
      [_, deadline] = Regex.run(~r/`deadline: (\d+)`/, message)
      assert found(Keyword.put(options, :deadline, String.to_integer(deadline))) == []
    end

    test "is not found of attempts without an end: that one is for the deadline to make" do
      assert found(deadline: 1, timeout: 1_000, retry: [max_attempts: :infinity, expiry: 60_000]) != []
      assert found(deadline: 1, timeout: 1_000, retry: [max_attempts: :infinity]) == []
    end
  end

  describe "wait_beyond_deadline" do
    test "is found of either limit" do
      rate_limit = [limit: 1, per: 1, wait: 1_001]
      concurrency = [limit: 1, wait: 1_001]
      assert found(deadline: 1_000, rate_limit: rate_limit) == [:wait_beyond_deadline]
      assert found(deadline: 1_000, concurrency: concurrency) == [:wait_beyond_deadline]

      both = [deadline: 1_000, rate_limit: rate_limit, concurrency: concurrency]
      assert [first, second] = for(%{message: message} <- findings(:mail, both), do: message)
      assert first =~ "rate_limit: [wait: 1001]"
      assert second =~ "concurrency: [wait: 1001]"
    end

    test "is not found of what fits, or of a wait that has no number" do
      assert found(deadline: 1_000, concurrency: [limit: 1, wait: 1_000]) == []
      assert found(deadline: 1_000, rate_limit: [limit: 1, per: 1, wait: :infinity]) == []
      assert found(concurrency: [limit: 1, wait: 60_000]) == []
    end
  end

  describe "dry_budget" do
    test "is found where neither successes nor time fill it again" do
      assert found(retry: [budget: [ratio: 0, min_per_second: 0]]) == [:dry_budget]
      assert found(retry: [budget: [ratio: 0.0, min_per_second: 0]]) == [:dry_budget]
      assert found(retry: [budget: [ratio: 1.0e-7, min_per_second: 0]]) == [:dry_budget]
      assert found(retry: [budget: [ratio: 0.1, min_per_second: 0]]) == []
      for budget <- [[ratio: 0], [], true, false], do: assert(found(retry: [budget: budget]) == [])
    end

    test "is found in a struct, too" do
      assert found(retry: %RetryOptions{budget: [ratio: 0, min_per_second: 0]}) == [:dry_budget]
    end
  end

  test "several are told in the order of the checks" do
    options = [
      circuit_breaker: [tolerate: 1, reset_backoff: [max: 90_000]],
      retry: [max_attempts: 9],
      concurrency: [limit: 1, wait: 9_000],
      deadline: 100
    ]

    assert found(options) == [
             :uncapped_backoff,
             :self_tripping_call,
             :idle_reset_backoff,
             :attempts_beyond_deadline,
             :wait_beyond_deadline
           ]
  end

  test "every message starts with the name and shows what to write in its place" do
    for options <- [
          [retry: [max_attempts: 7]],
          [circuit_breaker: [tolerate: 0]],
          [retry: [max_attempts: :infinity]],
          [circuit_breaker: [within: 1]],
          [retry: [backoff: :linear, factor: 10]],
          [circuit_breaker: [half_open: true, reset: 1], timeout: 2],
          [circuit_breaker: [failure_rate: 1, window: {:calls, 1}]],
          [circuit_breaker: [reset_backoff: [max: 90_000]]],
          [retry: [budget: [ratio: 0, min_per_second: 0]]]
        ] do
      assert [%{message: message}] = findings({"a name", 1}, options)
      assert message =~ ~r/^\{"a name", 1\} .*`(retry|circuit_breaker): \[[^\]]+\]/
    end
  end

  describe "options that can not be read" do
    @hostile [nil, true, :auto, -1, 0, 1.5, "text", {}, {:calls, :many}, %{}, [1], [:a | :b], [limit: nil], [[]]]

    for group <- [:circuit_breaker, :retry, :rate_limit, :concurrency, :timeout, :deadline] do
      test "raise nothing in #{group}" do
        for value <- @hostile do
          options = [{unquote(group), value}, {:deadline, 5}, {:timeout, 5}]
          assert is_list(findings(:mail, options))
        end
      end
    end

    for group <- [:circuit_breaker, :retry, :rate_limit, :concurrency],
        {option, _} <- ExternalService.Options.schema(group) do
      test "raise nothing in #{group}: #{option}" do
        for value <- @hostile, others <- [[], [window: {:calls, 1}, failure_rate: 0.5], [limit: 1, per: 1]] do
          assert is_list(findings(:mail, [{unquote(group), [{unquote(option), value} | others]}, {:deadline, 5}]))
        end
      end
    end

    test "raise nothing as a whole" do
      for value <- @hostile, do: assert(is_list(findings(:mail, value)))
    end

    test "do not hide what can be read beside them" do
      assert found(retry: [max_attempts: 9], circuit_breaker: [colour: :red]) == [:uncapped_backoff]
      assert found(retry: [max_attempts: 9], rate_limit: :fast, colour: :red) == [:uncapped_backoff]
    end
  end
end
